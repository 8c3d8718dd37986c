//! Results on standard output: tables for people, JSON for programs.

use std::io::{IsTerminal, Write};

use comfy_table::{presets, CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use crate::args::{Global, OutputForm};

/// How results are shown.
#[derive(Clone, Debug)]
pub struct Output {
    pub json: bool,
    pub quiet: bool,
}

impl Output {
    pub fn new(global: &Global) -> Self {
        Self { json: global.output == OutputForm::Json, quiet: global.quiet }
    }

    /// One JSON document, one line.
    pub fn json(&self, value: &impl Serialize) {
        let text = serde_json::to_string(value).expect("results have string keys only");
        self.line(&text);
    }

    /// A line of a result. A closed pipe ends nothing: the command's work is done all the same.
    pub fn line(&self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// A remark for people beside the result.
    pub fn remark(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// The state of something long, on one line that the next one replaces; an empty text clears it.
    pub fn progress(&self, text: &str) {
        if self.watched() {
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        }
    }

    /// A person watches standard error.
    pub fn watched(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    /// A table without frames, at most 80 columns, or as many as the terminal has if that is more.
    pub fn table(&self, header: &[&str], rows: Vec<Vec<String>>, right: &[usize]) {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width());
        table.set_header(header.iter().map(|name| name.to_uppercase()));
        for row in rows {
            table.add_row(row);
        }
        for (number, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if right.contains(&number) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for line in table.lines() {
            self.line(line.trim_end());
        }
    }
}

fn width() -> u16 {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(80, |size| size.ws_col.max(80))
}
