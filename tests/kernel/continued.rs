//! Files that are continued after a close, while other programs read them.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::mountpoint_pod::{LIMIT, eventually};
use s3_csi_tests::within;

use crate::files::served;
use crate::successors::behind;
use crate::survival::{content, shell};

/// How long the server takes to answer: enough for a program to write meanwhile.
const SLOW: Duration = Duration::from_secs(3);

/// Programs that open a file for reading must not keep the one that writes it from going on.
#[test]
fn a_file_that_others_read_all_the_time_is_continued() {
    let (client, _pod, served) = served("continued-read", &["--allow-overwrite"]);
    let script = "cd \"$1\"; all=$(seq 60)
        is_part() { case \"$all\" in \"$1\"*) ;; *) echo \"wrong bytes: $1\" ;; esac }
        for reader in 1 2 3; do
            (until [ -e stop ]; do if seen=$(cat log 2> /dev/null); then is_part \"$seen\"; fi; done) &
        done
        { for line in $all; do /bin/echo $line; done; } > log
        cat log; touch stop; wait";
    let read = shell(served.path(""), script);
    let lines: Vec<String> = (1..=60).map(|line| line.to_string()).collect();
    let expected = lines.join("\n") + "\n";
    assert_eq!(read, expected);
    assert_eq!(client.get("continued-read", "log").unwrap(), expected.as_bytes());
}

/// A shell closes a duplicate before the program writes. If another program opens the file then, it is published empty.
#[test]
fn a_file_that_is_being_published_empty_is_written() {
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (client, _pod, served) = behind(&faulty, "continued-empty", &["--allow-overwrite"]);
    client.put("continued-empty", "file", b"before").unwrap();
    let file = served.touch("file", |path| File::create(path)).unwrap();
    let file = within("closing a duplicate", LIMIT, move || {
        drop(file.try_clone().unwrap());
        file
    });
    faulty.plan(
        |_, line| {
            if line.starts_with("PUT /continued-empty/file") { Fault::Delay(SLOW) } else { Fault::None }
        },
    );
    let path = served.path("file");
    let reader = thread::spawn(move || fs::read(path));
    let is_published = || faulty.answered().iter().any(|line| line.starts_with("PUT /continued-empty/file"));
    eventually("the file is being published", is_published);
    faulty.plan(|_, _| Fault::None);
    let written = within("a write", LIMIT, move || {
        (&file).write_all(b"after")?;
        nix::unistd::close(file).map_err(std::io::Error::from)
    });
    written.unwrap();
    assert_eq!(client.get("continued-empty", "file").unwrap(), b"after");
    let read = within("a reader", LIMIT, move || reader.join().unwrap());
    match read {
        Ok(read) => assert!(b"after".starts_with(&read[..]), "wrong bytes"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error())),
    }
}

/// It is larger than what is kept, and a process that was started has closed it, so that its upload is left to a later close.
#[test]
fn a_large_file_that_is_being_published_for_a_reader_is_written_on() {
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (client, _pod, served) = behind(&faulty, "continued-large", &[]);
    let large = content(9 << 20, 1);
    let expected = [&large[..], b"after"].concat();
    let file = served.touch("file", move |path| {
        let mut file = File::create(path)?;
        file.write_all(&large)?;
        assert!(Command::new("true").status()?.success());
        io::Result::Ok(file)
    });
    let file = file.unwrap();
    assert_eq!(client.objects("continued-large", "").unwrap(), [""; 0]);
    let completes = |line: &str| line.starts_with("POST /continued-large/file") && line.contains("uploadId=");
    faulty.plan(move |_, line| if completes(line) { Fault::Delay(SLOW) } else { Fault::None });
    let path = served.path("file");
    let reader = thread::spawn(move || fs::read(path));
    eventually("the file is being published", || faulty.answered().iter().any(|line| completes(line)));
    let written = within("a write", LIMIT, move || {
        (&file).write_all(b"after")?;
        file.sync_all()
    });
    written.unwrap();
    assert!(client.get("continued-large", "file").unwrap() == expected);
    let read = within("a reader", LIMIT, move || reader.join().unwrap());
    match read {
        Ok(read) => assert!(expected.starts_with(&read), "wrong bytes"),
        Err(error) => {
            assert!([Errno::STALE, Errno::IO].contains(&Errno::from_io_error(&error).unwrap()), "{error}")
        }
    }
}

#[test]
fn a_large_file_that_cannot_be_read_back_stays_as_it_was_published() {
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (client, _pod, served) = behind(&faulty, "continued-unread", &[]);
    let large = content(9 << 20, 1);
    let expected = large.clone();
    let file = served.touch("file", move |path| {
        let mut file = File::create(path)?;
        file.write_all(&large)?;
        file.sync_all().map(|()| file)
    });
    let file = file.unwrap();
    // Nor does the server copy it.
    faulty.plan(|_, line| match line {
        _ if line.starts_with("GET /continued-unread/file") => Fault::Refuse(403, "AccessDenied"),
        _ if line.contains("?uploads") => Fault::Refuse(501, "NotImplemented"),
        _ => Fault::None,
    });
    let outcomes = within("writes and a close", LIMIT, move || {
        let write = || (&file).write_all(b"more").map_err(|error| Errno::from_io_error(&error));
        let writes = [write(), write()];
        (writes, nix::unistd::close(file))
    });
    assert_eq!(outcomes, ([Err(Some(Errno::IO)); 2], Err(nix::errno::Errno::EIO)));
    assert!(client.get("continued-unread", "file").unwrap() == expected);
}

/// As `fopen` with `w+`: also after a close, which publishes what was written.
#[test]
fn a_program_reads_back_what_it_writes() {
    let (client, _pod, served) = served("continued-back", &["--allow-overwrite"]);
    client.put("continued-back", "replaced", b"before").unwrap();
    for name in ["new", "replaced"] {
        let read = served.touch(name, |path| -> io::Result<Vec<Vec<u8>>> {
            let mut open = File::options();
            let mut file = open.read(true).write(true).create(true).truncate(true).open(path)?;
            let mut read = Vec::new();
            for line in [&b"one,"[..], b"two,", b"three"] {
                file.write_all(line)?;
                let mut all = Vec::new();
                file.seek(SeekFrom::Start(0))?;
                file.read_to_end(&mut all)?;
                read.push(all);
                drop(file.try_clone()?);
            }
            Ok(read)
        });
        let expected = [&b"one,"[..], b"one,two,", b"one,two,three"].map(<[u8]>::to_vec);
        assert_eq!(read.unwrap(), expected, "{name}");
        assert_eq!(client.get("continued-back", name).unwrap(), expected[2], "{name}");
    }
}

/// The kernel has one size for the file, which grows with each write, and one cache.
#[test]
fn a_reader_of_a_file_that_is_written_on_gets_its_bytes_or_an_error() {
    let (client, _pod, served) = served("continued-size", &["--allow-overwrite"]);
    let published = b"published".to_vec();
    let [file, reader] = served.touch("file", |path| {
        let mut file = File::create(path).unwrap();
        file.write_all(b"published").unwrap();
        drop(file.try_clone().unwrap());
        [file, File::open(path).unwrap()]
    });
    let read = |mut reader: &File| {
        let mut all = Vec::new();
        reader.seek(SeekFrom::Start(0)).unwrap();
        reader.read_to_end(&mut all).map(|_| all)
    };
    let (seen, file) = within("writes and reads", LIMIT, move || {
        let mut seen = vec![read(&reader)];
        for size in [100, 300 << 10, 20] {
            (&file).write_all(&vec![1; size]).unwrap();
            seen.push(read(&reader));
        }
        (seen, file)
    });
    assert_eq!(seen[0].as_ref().unwrap(), &published, "nothing was written since");
    within("a close", LIMIT, move || nix::unistd::close(file)).unwrap();
    let whole = [published, vec![1; 100 + (300 << 10) + 20]].concat();
    assert!(served.read("file").unwrap() == whole, "by a new reader");
    for read in seen {
        match read {
            // The kernel may have what the writer has written.
            Ok(read) => assert!(whole.starts_with(&read), "wrong bytes"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error())),
        }
    }
    assert!(client.get("continued-size", "file").unwrap() == whole);
}
