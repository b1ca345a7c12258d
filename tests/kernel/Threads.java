// Opens a file on one thread, writes it on another and closes it on a third, as programs with pools of threads do.

import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Callable;
import java.util.concurrent.FutureTask;

class Threads {
    static FileOutputStream file;

    // Each call gets a thread of its own, which ends with it.
    static void onThread(Callable<Object> act) throws Exception {
        FutureTask<Object> task = new FutureTask<>(act);
        Thread thread = new Thread(task);
        thread.start();
        thread.join();
        task.get();
    }

    public static void main(String[] arguments) {
        try {
            onThread(() -> file = new FileOutputStream(arguments[0]));
            onThread(() -> { file.write("content".getBytes(StandardCharsets.UTF_8)); return null; });
            // The test decides when.
            onThread(() -> System.in.read());
            onThread(() -> { file.close(); return null; });
        } catch (Exception error) {
            System.out.println(error);
            System.exit(1);
        }
    }
}
