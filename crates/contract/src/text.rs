//! What others say, in messages of ours: errors of libraries, and texts of servers and pods.

use std::error::Error;

/// An error with its causes. Many errors already contain the text of their cause, which is not repeated.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}

/// A text from outside, which could otherwise write lines of its own into logs and Events, or control a terminal.
pub fn on_one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use thiserror::Error;

    #[derive(Debug, Error)]
    #[error("cannot start")]
    struct Outer(#[source] Middle);

    #[derive(Debug, Error)]
    #[error("no file: {0}")]
    struct Middle(#[source] io::Error);

    #[test]
    fn each_cause_is_named_once() {
        assert_eq!(causes(&Outer(Middle(io::Error::other("lost")))), "cannot start: no file: lost");
    }

    #[test]
    fn what_others_write_stays_on_one_line() {
        assert_eq!(on_one_line("a\nb\r\u{1b}[31mc"), "a b  [31mc");
    }
}
