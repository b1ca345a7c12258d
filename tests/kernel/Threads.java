// Opens a file on one thread, writes it on another and closes it on a third, as programs with pools of threads do.

import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;

class Threads {
    static FileOutputStream file;

    // Each call gets a thread of its own, which ends with it.
    static void onThread(String name, Callable<Object> act) throws InterruptedException {
        FutureTask<Object> task = new FutureTask<>(act);
        Thread thread = new Thread(task);
        thread.start();
        thread.join();
        try {
            task.get();
        } catch (ExecutionException error) {
            System.out.println(name + ": " + error.getCause());
            System.exit(1);
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        onThread("open", () -> file = new FileOutputStream(arguments[0]));
        onThread("write", () -> { file.write("content".getBytes(StandardCharsets.UTF_8)); return null; });
        // The test decides when.
        onThread("wait", () -> System.in.read());
        onThread("close", () -> { file.close(); return null; });
    }
}
