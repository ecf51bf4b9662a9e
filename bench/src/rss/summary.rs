//! Medians of one load, as a Markdown table and as JSON, and whether hg is below every reference.

use std::fmt;

use serde::Serialize;

/// The peers that hg is to be below.
const REFERENCES: [&str; 3] = ["mimalloc", "jemalloc", "glibc"];

/// What one child told, bytes and seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Resident before the load.
    pub(crate) start: u64,
    /// The most that was resident under load.
    pub(crate) peak: u64,
    /// Resident as soon as all blocks were freed.
    pub(crate) freed: u64,
    /// Resident after the rest.
    pub(crate) settled: u64,
    /// What the load took.
    pub(crate) seconds: f64,
}

/// One of the figures.
type Figure = fn(&Figures) -> u64;

/// One allocator's medians.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    #[serde(flatten)]
    figures: Figures,
}

/// The figures of one load.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    load: String,
    about: String,
    rounds: usize,
    rest_seconds: f64,
    rows: Vec<Row>,
}

impl Summary {
    /// Sums up the rounds: one list of figures for each name, none of them empty.
    pub(crate) fn of(load: String, about: String, rest_seconds: f64, rounds: &[(String, Vec<Figures>)]) -> Summary {
        let row = |(name, figures): &(String, Vec<Figures>)| Row { name: name.clone(), figures: median(figures) };
        let count = rounds.first().map_or(0, |(_, figures)| figures.len());
        Summary { load, about, rounds: count, rest_seconds, rows: rounds.iter().map(row).collect() }
    }

    /// Where a row of hg (its name starts with it) is not below every reference: one sentence each.
    pub(crate) fn misses(&self) -> Vec<String> {
        let mut misses = Vec::new();
        for row in self.rows.iter().filter(|row| row.name.starts_with("hg")) {
            for (what, figure) in Self::KINDS {
                if let Some(best) = self.best(figure)
                    && figure(&row.figures) >= figure(&best.figures)
                {
                    let (own, other) = (figure(&row.figures), figure(&best.figures));
                    let more = (own - other) as f64 * 100.0 / other.max(1) as f64;
                    let (load, hg, [own, other]) = (&self.load, &row.name, [own, other].map(mib));
                    misses.push(format!(
                        "{load}: {what} of {hg} is {own} MiB, {}'s {other} MiB (+{more:.1}%)",
                        best.name
                    ));
                }
            }
        }
        misses
    }

    const KINDS: [(&str, Figure); 2] = [("peak", |f| f.peak), ("final", |f| f.settled)];

    /// The reference with the lowest figure.
    fn best(&self, figure: Figure) -> Option<&Row> {
        let references = self.rows.iter().filter(|row| REFERENCES.contains(&row.name.as_str()));
        references.min_by_key(|row| figure(&row.figures))
    }
}

fn median(figures: &[Figures]) -> Figures {
    let middle = |pick: Figure| {
        let mut sorted: Vec<u64> = figures.iter().map(pick).collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    };
    let mut seconds: Vec<f64> = figures.iter().map(|f| f.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    Figures {
        start: middle(|f| f.start),
        peak: middle(|f| f.peak),
        freed: middle(|f| f.freed),
        settled: middle(|f| f.settled),
        seconds: seconds.get(seconds.len() / 2).copied().unwrap_or(0.0),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1 << 20) as f64)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n### {}: resident MiB, medians of {} interleaved rounds\n", self.load, self.rounds)?;
        writeln!(f, "{}.\n", self.about.trim_end_matches('.'))?;
        let ratio = |figure: Figure, row: &Row| {
            let best = self.best(figure).map(|best| figure(&best.figures)).filter(|&best| best > 0);
            best.map_or("-".into(), |best| format!("{:.2}", figure(&row.figures) as f64 / best as f64))
        };
        let rest = self.rest_seconds;
        writeln!(
            f,
            "| allocator | start | peak | of best | all freed | final, {rest:.0} s later | of best | seconds |"
        )?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|---:|---:|")?;
        for row in &self.rows {
            let Figures { start, peak, freed, settled, seconds } = row.figures;
            let (peak_ratio, final_ratio) = (ratio(|f| f.peak, row), ratio(|f| f.settled, row));
            let [start, peak, freed, settled] = [start, peak, freed, settled].map(mib);
            writeln!(
                f,
                "| {} | {start} | {peak} | {peak_ratio} | {freed} | {settled} | {final_ratio} | {seconds:.2} |",
                row.name
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(hg: (u64, u64), glibc: (u64, u64), jemalloc: (u64, u64)) -> Summary {
        let figures = |(peak, settled)| Figures { start: 2 << 20, peak, freed: peak, settled, seconds: 1.0 };
        let row = |name: &str, pair| (name.into(), vec![figures((99 << 20, 99 << 20)), figures(pair), figures((0, 0))]);
        Summary::of(
            "load".into(),
            "A load.".into(),
            12.0,
            &[row("hg", hg), row("glibc", glibc), row("jemalloc", jemalloc)],
        )
    }

    #[test]
    fn below_every_reference_is_no_miss() {
        assert_eq!(summary((5 << 20, 3 << 20), (6 << 20, 4 << 20), (7 << 20, 9 << 20)).misses(), Vec::<String>::new());
    }

    #[test]
    fn each_figure_is_held_against_the_lowest_reference() {
        let misses = summary((6 << 20, 3 << 20), (6 << 20, 3 << 20), (7 << 20, 2 << 20)).misses();
        assert_eq!(misses.len(), 2);
        assert_eq!(misses[0], "load: peak of hg is 6.0 MiB, glibc's 6.0 MiB (+0.0%)");
        assert_eq!(misses[1], "load: final of hg is 3.0 MiB, jemalloc's 2.0 MiB (+50.0%)");
    }

    #[test]
    fn the_table_shows_medians_and_ratios() {
        let text = summary((5 << 20, 3 << 20), (10 << 20, 2 << 20), (20 << 20, 4 << 20)).to_string();
        assert!(text.contains("| hg | 2.0 | 5.0 | 0.50 | 5.0 | 3.0 | 1.50 | 1.00 |"), "{text}");
    }
}
