//! A picture of all gaps: one strip of dots per event over a logarithmic axis, with the objectives as marks. SVG, a few
//! bytes per dot: it lies in the repository.

use std::fmt::Write;

use super::timelines::{shown, Row};

const WIDTH: f64 = 800.0;
/// Where the axis begins and ends.
const LEFT: f64 = 292.0;
const RIGHT: f64 = 780.0;
const TOP: f64 = 58.0;
const ROW: f64 = 40.0;
/// The axis, ms.
const FROM: f64 = 1.0;
const TO: f64 = 10_000.0;

const STYLE: &str = "text{font-family:system-ui,'DejaVu Sans',Arial,sans-serif;fill:#24292f}.s{font-size:11px;fill:#57606a}\
.t{font-size:13px}.h{font-size:11px}.g{stroke:#d8dee4;stroke-width:1}.d{stroke:#0969da;stroke-width:5;stroke-linecap:round;\
stroke-opacity:.5;fill:none}.m{stroke:#1a7f37;stroke-width:2.5}.x{stroke:#cf222e;stroke-width:2.5}\
.k{stroke:#24292f;stroke-width:2}";

/// Draws the rows.
#[must_use]
pub fn svg(rows: &[Row]) -> String {
    #[allow(clippy::cast_precision_loss)]
    let bottom = TOP + ROW * rows.len() as f64;
    let height = bottom + 30.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"Gaps at the client by event\"><style>{STYLE}</style>\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    legend(&mut out);
    axis(&mut out, bottom);
    let mut top = TOP;
    for row in rows {
        strip(&mut out, row, top);
        top += ROW;
    }
    out += "</svg>\n";
    out
}

/// Writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($what:tt)*) => { let _ = writeln!($out, $($what)*); };
}

fn legend(out: &mut String) {
    put!(
        out,
        "<text class=\"t\" x=\"10\" y=\"20\">Gap at the client: last acknowledgement before to first after</text>"
    );
    let y = 38.0;
    let entries =
        [("d", "one event", 10.0), ("k", "median", 92.0), ("m", "objective p50", 160.0), ("x", "objective p99", 266.0)];
    for (class, what, x) in entries {
        if class == "d" {
            put!(out, "<path class=\"d\" d=\"M{} {}h0\"/>", x + 3.0, y);
        } else {
            put!(out, "<path class=\"{class}\" d=\"M{} {}v12\"/>", x + 3.0, y - 6.0);
        }
        put!(out, "<text class=\"h\" x=\"{}\" y=\"{}\">{what}</text>", x + 11.0, y + 4.0);
    }
}

fn axis(out: &mut String, bottom: f64) {
    for (at, label) in [(1.0, "1 ms"), (10.0, "10 ms"), (100.0, "100 ms"), (1_000.0, "1 s"), (10_000.0, "10 s")] {
        put!(out, "<path class=\"g\" d=\"M{:.1} {}V{bottom}\"/>", x(at), TOP);
        put!(out, "<text class=\"s\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", x(at), bottom + 18.0);
    }
}

fn strip(out: &mut String, row: &Row, top: f64) {
    let objective = &row.objective;
    put!(out, "<path class=\"g\" d=\"M10 {top}H{RIGHT}\"/>");
    put!(out, "<text class=\"t\" x=\"10\" y=\"{}\">{}</text>", top + 17.0, escaped(objective.title));
    let figures = format!("{} × · p50 {} · p99 {}", row.gaps.all.len(), shown(row.gaps.p50), shown(row.gaps.p99));
    put!(out, "<text class=\"s\" x=\"10\" y=\"{}\">{figures}</text>", top + 32.0);
    let mark = |class: &str, at: f64, inset: f64| {
        format!("<path class=\"{class}\" d=\"M{:.1} {}v{}\"/>\n", x(at), top + inset, ROW - 2.0 * inset)
    };
    *out += &mark("x", objective.p99_ms, 4.0);
    if let Some(p50) = objective.p50_ms {
        *out += &mark("m", p50, 4.0);
    }
    let mut dots = String::new();
    for (number, gap) in row.gaps.all.iter().enumerate() {
        // Spread over the strip, the same in every picture: 7 and 23 have no common divisor.
        #[allow(clippy::cast_precision_loss)]
        let y = top + ROW / 2.0 - 11.0 + (number * 7 % 23) as f64;
        let _ = write!(dots, "M{:.1} {y}h0", x(*gap));
    }
    put!(out, "<path class=\"d\" d=\"{dots}\"/>");
    *out += &mark("k", row.gaps.p50, 12.0);
}

/// Where a gap of so many ms lies; what is beyond the axis lies at its end.
fn x(ms: f64) -> f64 {
    let share = (ms.clamp(FROM, TO) / FROM).ln() / (TO / FROM).ln();
    LEFT + share * (RIGHT - LEFT - 14.0)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::super::timelines::{parse, tests::report, OBJECTIVES};
    use super::*;

    #[test]
    fn a_picture_of_all_rows_is_small_and_has_a_dot_for_every_gap() {
        let gaps: Vec<f64> = (0..200).map(|n| 5.0 + f64::from(n) * 13.7).collect();
        let rows: Vec<Row> =
            OBJECTIVES.iter().map(|o| parse(&report(o.fault, o.partitions, &gaps, 0, 0)).expect("a report")).collect();
        let text = svg(&rows);
        assert!(text.len() < 80_000, "{} bytes for 3000 dots", text.len());
        // One more in the legend.
        assert_eq!(text.matches("h0").count(), gaps.len() * rows.len() + 1);
        assert!(rows.iter().all(|row| text.contains(&escaped(row.objective.title))));
    }

    #[test]
    fn the_axis_is_logarithmic_and_ends_where_it_ends() {
        assert!((x(10.0) - x(1.0) - (x(100.0) - x(10.0))).abs() < 1e-6);
        assert!((x(0.1) - x(1.0)).abs() < 1e-6);
        assert!((x(99_999.0) - x(10_000.0)).abs() < 1e-6);
    }
}
