//! One JSON object per line, without a time: the container runtime adds it.

use std::io::Write as _;

use serde_json::{Map, Value};

type Fields<'a> = [(&'a str, &'a str)];

pub(crate) fn info(message: &str, fields: &Fields<'_>) {
    write("INFO", message, fields);
}

pub(crate) fn warn(message: &str, fields: &Fields<'_>) {
    write("WARN", message, fields);
}

pub(crate) fn error(message: &str, fields: &Fields<'_>) {
    write("ERROR", message, fields);
}

/// A line of the mount process, which has its own level.
pub(crate) fn forward(line: &str, fields: &Fields<'_>) {
    print(object(line, fields));
}

fn write(level: &str, message: &str, fields: &Fields<'_>) {
    let mut line = object(message, fields);
    line.insert("level".to_owned(), level.into());
    print(line);
}

fn object(message: &str, fields: &Fields<'_>) -> Map<String, Value> {
    // An older node sends no trace id.
    let fields = fields.iter().filter(|(_, value)| !value.is_empty());
    let fields = fields.map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
    fields.chain([("message".to_owned(), message.into())]).collect()
}

fn print(line: Map<String, Value>) {
    // A mount must not end because its log cannot be written.
    let _ = writeln!(std::io::stdout().lock(), "{}", Value::Object(line));
}
