//! `--key-field` and `--idempotency-field`: a column by number (from 1) or name, or a template of them.
//!
//! `3` · `order_id` · `{3}:{line}` (`{line}` is the line on which the row begins; `{{` and `}}` are braces).
//! The tool never makes keys unique by itself: what stands in the row is the key.

use std::borrow::Cow;
use std::str::FromStr;

use super::rows::{Format, Row};

/// What makes a key, as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    pieces: Vec<Piece>,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// Index from 0.
    Column(usize),
    Name(String),
    Line,
}

/// Why a selector cannot be used, or a row has no such field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FieldError(String);

impl FromStr for Selector {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let pieces = if text.contains(['{', '}']) { parse_template(text)? } else { vec![parse_field(text, false)?] };
        Ok(Self { pieces, text: text.to_owned() })
    }
}

impl Selector {
    /// A column is given by name, so the first row of a CSV input is its header.
    #[must_use]
    pub fn needs_header(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Name(_)))
    }

    /// Checks the selector against the input's kind, and turns names into columns.
    pub fn bind(&self, format: Format, header: Option<&Row>) -> Result<Self, FieldError> {
        let mut bound = self.clone();
        for piece in &mut bound.pieces {
            match (format, &*piece) {
                (Format::Csv, Piece::Name(name)) => {
                    let header = header.ok_or_else(|| FieldError(format!("no header row names column `{name}`")))?;
                    *piece = Piece::Column(find_column(header, name)?);
                }
                (Format::Json, Piece::Column(at)) => {
                    let text = format!("`{}`: JSON members have names, not numbers ({})", self.text, at + 1);
                    return Err(FieldError(text));
                }
                (Format::Lines, Piece::Column(_) | Piece::Name(_)) => {
                    let text = format!("`{}`: lines have no fields; use --format csv or json, or {{line}}", self.text);
                    return Err(FieldError(text));
                }
                _ => {}
            }
        }
        Ok(bound)
    }

    /// The key of one row.
    pub fn value(&self, row: &Row, fields: &Fields<'_>) -> Result<Vec<u8>, FieldError> {
        let mut value = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => value.extend_from_slice(text.as_bytes()),
                Piece::Line => value.extend_from_slice(row.line.to_string().as_bytes()),
                Piece::Column(at) => value.extend_from_slice(fields.column(*at)?),
                Piece::Name(name) => value.extend_from_slice(fields.member(name)?.as_bytes()),
            }
        }
        if value.is_empty() {
            return Err(FieldError(format!("`{}` is empty in this row", self.text)));
        }
        Ok(value)
    }
}

fn parse_template(text: &str) -> Result<Vec<Piece>, FieldError> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        literal.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            literal.push_str(brace);
            rest = after;
            continue;
        }
        let end = if brace == "{" { rest.find('}') } else { None };
        let end = end.ok_or_else(|| FieldError(format!("`{text}`: a brace has no partner ({{{{ stands for {{)")))?;
        if !literal.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut literal)));
        }
        pieces.push(parse_field(&rest[..end], true)?);
        rest = &rest[end + 1..];
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Text(literal));
    }
    Ok(pieces)
}

fn parse_field(text: &str, template: bool) -> Result<Piece, FieldError> {
    if text.is_empty() {
        return Err(FieldError("a field has neither number nor name".to_owned()));
    }
    if template && text == "line" {
        return Ok(Piece::Line);
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(Piece::Name(text.to_owned()));
    }
    match text.parse::<usize>() {
        Ok(0) => Err(FieldError("columns count from 1".to_owned())),
        Ok(number) => Ok(Piece::Column(number - 1)),
        Err(_) => Err(FieldError(format!("`{text}` is no column number"))),
    }
}

fn find_column(header: &Row, name: &str) -> Result<usize, FieldError> {
    let fields = Fields::of(Format::Csv, header)?;
    let Fields::Csv(columns) = &fields else { return Err(FieldError("no header".to_owned())) };
    let names: Vec<Cow<'_, str>> = columns.iter().map(|c| String::from_utf8_lossy(c)).collect();
    // A byte order mark belongs to the file, not to the first column's name.
    let is = |found: &Cow<'_, str>| found.trim_start_matches('\u{feff}').trim() == name;
    names
        .iter()
        .position(is)
        .ok_or_else(|| FieldError(format!("no column `{name}`; the first row names: {}", names.join(", "))))
}

/// The fields of one row.
pub enum Fields<'a> {
    /// Nothing was asked for.
    None,
    /// Unquoted columns.
    Csv(Vec<Cow<'a, [u8]>>),
    /// Members of an object.
    Json(serde_json::Map<String, serde_json::Value>),
}

impl<'a> Fields<'a> {
    /// Takes a row apart.
    pub fn of(format: Format, row: &'a Row) -> Result<Self, FieldError> {
        match format {
            Format::Lines => Ok(Self::None),
            Format::Csv if !row.bytes.contains(&b'"') => {
                Ok(Self::Csv(row.bytes.split(|&b| b == b',').map(Cow::Borrowed).collect()))
            }
            Format::Csv => {
                let mut reader =
                    csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(row.bytes.as_ref());
                let mut record = csv::ByteRecord::new();
                reader.read_byte_record(&mut record).map_err(|e| FieldError(format!("not a CSV row: {e}")))?;
                Ok(Self::Csv(record.iter().map(|field| Cow::Owned(field.to_vec())).collect()))
            }
            Format::Json => match serde_json::from_slice(&row.bytes) {
                Ok(serde_json::Value::Object(members)) => Ok(Self::Json(members)),
                Ok(_) => Err(FieldError("not a JSON object".to_owned())),
                Err(e) => Err(FieldError(format!("not a JSON object: {e}"))),
            },
        }
    }

    fn column(&self, at: usize) -> Result<&[u8], FieldError> {
        let Self::Csv(columns) = self else { return Err(FieldError("the row has no columns".to_owned())) };
        columns
            .get(at)
            .map(AsRef::as_ref)
            .ok_or_else(|| FieldError(format!("no column {}: the row has {}", at + 1, columns.len())))
    }

    fn member(&self, name: &str) -> Result<String, FieldError> {
        let Self::Json(members) = self else { return Err(FieldError("the row has no members".to_owned())) };
        match members.get(name) {
            None | Some(serde_json::Value::Null) => Err(FieldError(format!("no member `{name}`"))),
            Some(serde_json::Value::String(text)) => Ok(text.clone()),
            Some(other) => Ok(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: u64, text: &str) -> Row {
        Row { line, bytes: text.to_owned().into() }
    }

    fn value(selector: &str, format: Format, header: Option<&str>, data: &str) -> Result<String, FieldError> {
        let header = header.map(|text| row(1, text));
        let selector = selector.parse::<Selector>()?.bind(format, header.as_ref())?;
        let data = row(7, data);
        let value = selector.value(&data, &Fields::of(format, &data)?)?;
        Ok(String::from_utf8(value).expect("text"))
    }

    #[test]
    fn columns_count_from_one() {
        assert_eq!(value("3", Format::Csv, None, "a,b,c").as_deref(), Ok("c"));
        assert!("0".parse::<Selector>().is_err());
        assert!(value("4", Format::Csv, None, "a,b,c").is_err());
    }

    #[test]
    fn a_template_joins_columns_text_and_the_line() {
        assert_eq!(value("{3}:{line}", Format::Csv, None, "a,b,c").as_deref(), Ok("c:7"));
        assert_eq!(value("{{{1}}}", Format::Csv, None, "a,b,c").as_deref(), Ok("{a}"));
        for broken in ["{3", "3}", "{}", "{0}"] {
            assert!(broken.parse::<Selector>().is_err(), "{broken}");
        }
    }

    #[test]
    fn only_a_name_makes_the_first_row_a_header() {
        let needs = |text: &str| text.parse::<Selector>().expect("parses").needs_header();
        assert!(needs("id") && needs("{id}:{line}"));
        assert!(!needs("3") && !needs("{3}:{line}"));
        assert_eq!(value("id", Format::Csv, Some("\u{feff}id,price"), "9,10").as_deref(), Ok("9"));
        let missing = value("nr", Format::Csv, Some("id,price"), "9,10").expect_err("no such column");
        assert!(missing.to_string().contains("id, price"), "{missing}");
    }

    #[test]
    fn quoted_columns_are_unquoted() {
        assert_eq!(value("2", Format::Csv, None, "1,\"a, \"\"b\"\"\nc\",2").as_deref(), Ok("a, \"b\"\nc"));
    }

    #[test]
    fn json_members_are_keys_as_they_stand() {
        let data = "{\"id\": 17, \"acc\": \"DE 1\", \"none\": null}";
        assert_eq!(value("id", Format::Json, None, data).as_deref(), Ok("17"));
        assert_eq!(value("{acc}/{id}", Format::Json, None, data).as_deref(), Ok("DE 1/17"));
        assert!(value("none", Format::Json, None, data).is_err());
        assert!(value("1", Format::Json, None, data).is_err());
        assert!(value("id", Format::Json, None, "[1]").is_err());
    }

    #[test]
    fn lines_have_no_fields_but_their_number() {
        assert_eq!(value("{line}", Format::Lines, None, "x").as_deref(), Ok("7"));
        assert!(value("1", Format::Lines, None, "x").is_err());
    }

    #[test]
    fn an_empty_key_is_no_key() {
        assert!(value("2", Format::Csv, None, "a,,c").is_err());
    }
}
