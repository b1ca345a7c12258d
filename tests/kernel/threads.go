// Opens a file on one thread, writes it on another and closes it on a third, as Go programs do without knowing.
package main

import (
	"fmt"
	"os"
	"runtime"
)

// Each call gets a thread of its own, which ends with it.
func onThread(act func() error) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- act()
	}()
	if err := <-done; err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func main() {
	var file *os.File
	onThread(func() (err error) { file, err = os.Create(os.Args[1]); return })
	onThread(func() error { _, err := file.WriteString("content"); return err })
	// The test decides when.
	onThread(func() error { _, err := os.Stdin.Read(make([]byte, 1)); return err })
	onThread(func() error { return file.Close() })
}
