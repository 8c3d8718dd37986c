//! Durations and instants as people type them.

use std::time::Duration;

/// `500ms`, `10s`, `2m`, `1h`, `7d`; a bare number means seconds.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is no duration; write 500ms, 10s, 2m, 1h or 7d"))?;
    let seconds = match unit.trim() {
        "ms" => number / 1_000.0,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3_600.0,
        "d" => number * 86_400.0,
        _ => return Err(format!("`{text}`: the unit is ms, s, m, h or d")),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is out of range"))
}

/// `200`, `1KiB`, `64k`, `2MiB`: bytes.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().map_err(|_| format!("`{text}` is no size; write 200, 1KiB or 2MiB"))?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return Err(format!("`{text}`: the unit is B, KiB, MiB or GiB")),
    };
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is out of range"))
}

/// This host's wall clock, microseconds since the Unix epoch; 0 before it.
pub fn now_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Seconds since the Unix epoch of `2026-01-31T09:30:00Z` (fractions allowed), in microseconds.
pub fn parse_instant(text: &str) -> Option<i64> {
    let body = text.strip_suffix('Z')?;
    let (date, time) = body.split_once(['T', ' '])?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (time.next()?.parse::<i64>().ok()?, time.next()?.parse::<i64>().ok()?);
    let second: f64 = time.next().unwrap_or("0").parse().ok()?;
    let valid = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..60.0).contains(&second);
    if !valid {
        return None;
    }
    // Days from civil (Howard Hinnant): March-based years make leap days the last day.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    #[allow(clippy::cast_possible_truncation)]
    let micros = (second * 1e6).round() as i64;
    Some((days * 86_400 + hour * 3_600 + minute * 60) * 1_000_000 + micros)
}

/// An instant as `2026-01-31 09:30:00.123Z`.
pub fn show_instant(micros: i64) -> String {
    let (seconds, millis) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000) / 1_000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_bare_numbers_are_seconds() {
        assert_eq!(parse_span("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_span("1.5s"), Ok(Duration::from_millis(1_500)));
        assert_eq!(parse_span("3"), Ok(Duration::from_secs(3)));
        assert_eq!(parse_span("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_span("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert!(parse_span("2y").is_err() && parse_span("").is_err() && parse_span("-1s").is_err());
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(parse_size("200"), Ok(200));
        assert_eq!(parse_size("1KiB"), Ok(1024));
        assert!(parse_size("1kb2").is_err());
    }

    #[test]
    fn instants_go_both_ways() {
        assert_eq!(parse_instant("1970-01-01T00:00:00Z"), Some(0));
        let micros = parse_instant("2024-02-29T23:59:59.250Z").expect("parses");
        assert_eq!(micros, 1_709_251_199_250_000);
        assert_eq!(show_instant(micros), "2024-02-29 23:59:59.250Z");
        assert_eq!(parse_instant("2024-13-01T00:00:00Z"), None);
        assert_eq!(parse_instant("yesterday"), None);
    }
}
