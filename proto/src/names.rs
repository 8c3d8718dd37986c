//! Topic names: `[namespace/]name`.

use std::fmt;
use std::str::FromStr;

use crate::limits::TOPIC_NAME_MAX;

/// Namespace of a name that gives none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A topic's full name. Parts are `[A-Za-z0-9._-]{1,200}`, but not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName {
    namespace: String,
    name: String,
}

/// Why a text is no topic name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTopicName {
    /// A part is empty.
    #[error("topic name `{0}` has an empty part: use `name` or `namespace/name`")]
    Empty(String),
    /// A part is longer than 200 characters.
    #[error("a part of the topic name has {0} characters; at most {TOPIC_NAME_MAX} are allowed")]
    TooLong(usize),
    /// A character that is not allowed.
    #[error("topic name `{text}` contains {found:?}; allowed are letters, digits, `.`, `_` and `-`")]
    Character {
        /// The whole name.
        text: String,
        /// First character that is not allowed.
        found: char,
    },
    /// `.` or `..`.
    #[error("topic name `{0}`: `.` and `..` are not names")]
    Dots(String),
}

impl TopicName {
    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name within its namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As people write it: without the default namespace.
    #[must_use]
    pub fn short(&self) -> String {
        if self.namespace == DEFAULT_NAMESPACE {
            self.name.clone()
        } else {
            self.to_string()
        }
    }
}

impl FromStr for TopicName {
    type Err = BadTopicName;

    fn from_str(text: &str) -> Result<Self, BadTopicName> {
        let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
        check(namespace, text)?;
        check(name, text)?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

fn check(part: &str, text: &str) -> Result<(), BadTopicName> {
    // The text may be anything from outside: only a bounded part of it goes into an error.
    let shown = || text.chars().take(2 * TOPIC_NAME_MAX).collect::<String>();
    if part.is_empty() {
        return Err(BadTopicName::Empty(shown()));
    }
    if part.len() > TOPIC_NAME_MAX {
        return Err(BadTopicName::TooLong(part.chars().count()));
    }
    if let Some(found) = part.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
        return Err(BadTopicName::Character { text: shown(), found });
    }
    if part == "." || part == ".." {
        return Err(BadTopicName::Dots(shown()));
    }
    Ok(())
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_namespace_is_in_the_default_one() {
        let topic: TopicName = "orders".parse().unwrap();
        assert_eq!((topic.namespace(), topic.name()), ("default", "orders"));
        assert_eq!(topic.to_string(), "default/orders");
        assert_eq!(topic.short(), "orders");
        assert_eq!("eu/orders".parse::<TopicName>().unwrap().short(), "eu/orders");
    }

    #[test]
    fn what_is_no_name_is_refused_by_kind() {
        let parse = |text: &str| text.parse::<TopicName>().unwrap_err();
        assert!(matches!(parse(""), BadTopicName::Empty(_)));
        assert!(matches!(parse("/x"), BadTopicName::Empty(_)));
        assert!(matches!(parse("x/"), BadTopicName::Empty(_)));
        assert!(matches!(parse("a/b/c"), BadTopicName::Character { found: '/', .. }));
        assert!(matches!(parse("a b"), BadTopicName::Character { found: ' ', .. }));
        assert!(matches!(parse("é"), BadTopicName::Character { .. }));
        assert!(matches!(parse("a/.."), BadTopicName::Dots(_)));
        assert!(matches!(parse(&"x".repeat(201)), BadTopicName::TooLong(201)));
        assert!("x".repeat(200).parse::<TopicName>().is_ok());
    }
}
