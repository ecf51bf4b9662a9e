//! Medians and ratios of one pattern, as a Markdown table and as JSON.

use std::fmt;

use serde::Serialize;

use crate::patterns::Pattern;
use crate::peers::Peer;

/// The peers whose better one hg is held against.
const REFERENCES: [&str; 2] = ["mimalloc", "jemalloc"];

/// One allocator's figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    median_ns: f64,
    min_ns: f64,
    max_ns: f64,
    /// Median over the median of the better reference; absent where there is none.
    ratio: Option<f64>,
}

/// The figures of one pattern.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Result {
    pattern: &'static str,
    rounds: usize,
    /// The better one of the references.
    reference: Option<String>,
    rows: Vec<Row>,
}

impl Result {
    /// Sums up the rounds: one list of times a peer, none of them empty.
    pub(crate) fn of(pattern: Pattern, peers: &[Peer], times: &[Vec<f64>]) -> Result {
        let mut rows: Vec<Row> = peers.iter().zip(times).map(|(peer, times)| Row::of(&peer.name, times)).collect();
        let references = rows.iter().filter(|row| REFERENCES.contains(&row.name.as_str()));
        let best = references.min_by(|a, b| a.median_ns.total_cmp(&b.median_ns)).cloned();
        if let Some(best) = &best {
            rows.iter_mut().for_each(|row| row.ratio = Some(row.median_ns / best.median_ns));
        }
        let rounds = times.first().map_or(0, Vec::len);
        Result { pattern: pattern.name(), rounds, reference: best.map(|row| row.name), rows }
    }
}

impl Row {
    fn of(name: &str, times: &[f64]) -> Row {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] };
        Row { name: name.into(), median_ns: median, min_ns: sorted[0], max_ns: sorted[sorted.len() - 1], ratio: None }
    }
}

impl fmt::Display for Result {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reference = self.reference.as_deref().unwrap_or("no reference installed");
        writeln!(f, "\n### {}: ns per malloc and free, {} interleaved rounds\n", self.pattern, self.rounds)?;
        writeln!(f, "| allocator | median | min | max | of {reference} |")?;
        writeln!(f, "|---|---:|---:|---:|---:|")?;
        for Row { name, median_ns, min_ns, max_ns, ratio } in &self.rows {
            let ratio = ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
            writeln!(f, "| {name} | {median_ns:.2} | {min_ns:.2} | {max_ns:.2} | {ratio} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_better_reference() {
        let names = ["hg", "glibc", "mimalloc", "jemalloc"];
        let peers = names.map(|name| Peer::new(name, None));
        let times = [vec![6.0, 5.0, 4.0], vec![9.0, 9.0, 9.0], vec![8.0, 7.0, 1.0], vec![4.0, 4.0, 8.0]];
        let result = Result::of(Pattern::Pair, &peers, &times);
        assert_eq!(result.reference.as_deref(), Some("jemalloc"));
        assert_eq!(result.rows[0].ratio, Some(1.25));
        assert_eq!((result.rows[2].median_ns, result.rows[2].min_ns, result.rows[2].max_ns), (7.0, 1.0, 8.0));
        assert!(result.to_string().contains("| hg | 5.00 | 4.00 | 6.00 | 1.25 |"));
    }

    #[test]
    fn without_a_reference_there_is_no_ratio() {
        let peers = [Peer::new("hg", None)];
        let result = Result::of(Pattern::Pair, &peers, &[vec![2.0, 4.0]]);
        assert_eq!((result.rows[0].median_ns, result.rows[0].ratio), (3.0, None));
    }
}
