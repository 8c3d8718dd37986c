//! Reads rows from a file or stdin without changing a byte: a message is its row, without the line end.

use std::io::{self, BufRead, Read};

use bytes::Bytes;
use clap::ValueEnum;

/// How the input is cut into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One message a row; a quoted field may hold line ends. Empty rows are passed over.
    Csv,
    /// One JSON object a line. Empty lines are passed over.
    Json,
    /// One message a line, empty lines too.
    Lines,
}

/// A row longer than this is an error, not a reason to fill the memory; records end at 1 MiB anyway.
const MAX_ROW: usize = 4 << 20;

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Line on which it begins, from 1.
    pub line: u64,
    /// Its bytes without the line end.
    pub bytes: Bytes,
}

/// Rows of an input.
pub struct Rows<R> {
    reader: R,
    format: Format,
    lines: u64,
}

impl<R: BufRead> Rows<R> {
    /// From a buffered reader.
    pub fn new(reader: R, format: Format) -> Self {
        Self { reader, format, lines: 0 }
    }

    /// The next row, `None` at the end. The last row needs no line end.
    pub fn next_row(&mut self) -> io::Result<Option<Row>> {
        loop {
            let mut bytes = Vec::new();
            if !self.read_line(&mut bytes)? {
                return Ok(None);
            }
            let line = self.lines;
            // An odd number of quotes: a quoted field goes on after the line end. Each byte is looked at once.
            let mut open = self.format == Format::Csv && odd_quotes(&bytes);
            while open {
                let before = bytes.len();
                if !self.read_line(&mut bytes)? {
                    let text = format!(
                        "the row at line {line} opens a quoted field that never ends; close the quote, or publish the \
                         file with --format lines"
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
                open ^= odd_quotes(&bytes[before..]);
            }
            strip_line_end(&mut bytes);
            if bytes.is_empty() && self.format != Format::Lines {
                continue;
            }
            return Ok(Some(Row { line, bytes: bytes.into() }));
        }
    }

    /// Appends one line with its line end; false at the end of the input.
    fn read_line(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        let before = into.len();
        let room = (MAX_ROW + 1).saturating_sub(before) as u64;
        let mut limited = self.reader.by_ref().take(room);
        if limited.read_until(b'\n', into)? == 0 && room > 0 {
            return Ok(false);
        }
        if into.len() > MAX_ROW {
            let text = format!("the row at line {} is longer than {MAX_ROW} bytes", self.lines + 1);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        self.lines += 1;
        Ok(true)
    }
}

/// Everything up to the end as one message, without one final line end.
pub fn read_whole(mut reader: impl BufRead) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    reader.by_ref().take(MAX_ROW as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_ROW {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the message is longer than {MAX_ROW} bytes")));
    }
    strip_line_end(&mut bytes);
    Ok(bytes.into())
}

fn strip_line_end(bytes: &mut Vec<u8>) {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
}

fn odd_quotes(part: &[u8]) -> bool {
    part.iter().filter(|&&b| b == b'"').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, format: Format) -> Vec<(u64, String)> {
        let mut rows = Rows::new(text.as_bytes(), format);
        let mut all = Vec::new();
        while let Some(row) = rows.next_row().expect("reads") {
            all.push((row.line, String::from_utf8(row.bytes.to_vec()).expect("text")));
        }
        all
    }

    fn owned(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
        expected.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    }

    #[test]
    fn the_last_row_needs_no_line_end() {
        assert_eq!(rows("a,1\nb,2", Format::Csv), owned(&[(1, "a,1"), (2, "b,2")]));
        assert_eq!(rows("a,1\nb,2\n", Format::Csv), owned(&[(1, "a,1"), (2, "b,2")]));
    }

    #[test]
    fn line_ends_of_both_kinds_are_taken_off_and_nothing_else() {
        assert_eq!(rows("a \r\n b\t\n\rc\r", Format::Lines), owned(&[(1, "a "), (2, " b\t"), (3, "\rc\r")]));
    }

    #[test]
    fn a_quoted_field_may_hold_line_ends_and_lines_are_still_counted() {
        let text = "1,\"two\nlines\",x\n2,\"with \"\"quotes\"\"\",y\n";
        assert_eq!(rows(text, Format::Csv), owned(&[(1, "1,\"two\nlines\",x"), (3, "2,\"with \"\"quotes\"\"\",y")]));
    }

    #[test]
    fn a_quote_that_never_ends_is_an_error_and_swallows_no_rows() {
        let mut rows = Rows::new(&b"1,a\n2,b\n3,\"c\n4,d\n"[..], Format::Csv);
        assert_eq!(rows.next_row().expect("reads").map(|row| row.line), Some(1));
        assert_eq!(rows.next_row().expect("reads").map(|row| row.line), Some(2));
        let error = rows.next_row().expect_err("the quote is open");
        assert!(error.to_string().contains("line 3"), "{error}");
    }

    #[test]
    fn empty_lines_are_messages_only_in_lines() {
        assert_eq!(rows("a\n\nb\n", Format::Csv), owned(&[(1, "a"), (3, "b")]));
        assert_eq!(rows("a\n\nb\n", Format::Lines), owned(&[(1, "a"), (2, ""), (3, "b")]));
    }

    #[test]
    fn an_endless_row_is_an_error() {
        let endless = "x".repeat(MAX_ROW + 10);
        assert!(Rows::new(endless.as_bytes(), Format::Lines).next_row().is_err());
        let quote = format!("\"{}", "x\n".repeat(MAX_ROW));
        assert!(Rows::new(quote.as_bytes(), Format::Csv).next_row().is_err());
    }

    #[test]
    fn a_whole_input_is_one_message() {
        assert_eq!(read_whole(&b"{\n  \"a\": 1\n}\n"[..]).expect("reads"), Bytes::from("{\n  \"a\": 1\n}"));
    }
}
