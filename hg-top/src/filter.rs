//! The filter of a table: words that must occur in a row, and comparisons of columns by value.
//!
//! `refill`, `size>=4096`, `live>1k reused>0`; `and` between terms may be written. Sizes take `k`, `m`, `g` (powers of 1024
//! for bytes columns and sizes alike, as `4k` means the class of 4096 bytes).

use crate::view::table::{Column, Key, Row};

/// A parsed filter; the empty one lets everything pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Word(String),
    Compare { column: String, operator: Operator, value: f64 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    Equal,
    NotEqual,
}

/// Longest operators first, so that `>=` is not read as `>`.
const OPERATORS: [(&str, Operator); 6] = [
    ("<=", Operator::LessOrEqual),
    (">=", Operator::MoreOrEqual),
    ("!=", Operator::NotEqual),
    ("<", Operator::Less),
    (">", Operator::More),
    ("=", Operator::Equal),
];

impl Filter {
    /// Reads what was typed; a comparison that makes no sense is taken for a word.
    pub fn parse(text: &str) -> Filter {
        let words = text.split_whitespace().filter(|word| *word != "and");
        Filter { terms: words.map(|word| compare(word).unwrap_or_else(|| Term::Word(word.to_lowercase()))).collect() }
    }

    /// Whether it lets everything pass.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether a row passes. A column that the table has not never matches.
    pub fn passes(&self, columns: &[Column], row: &Row) -> bool {
        self.terms.iter().all(|term| match term {
            Term::Word(word) => row.cells.iter().any(|cell| cell.text.to_lowercase().contains(word)),
            Term::Compare { column, operator, value } => {
                let index = columns.iter().position(|c| c.name == column);
                match index.and_then(|index| row.cells.get(index)).map(|cell| &cell.key) {
                    Some(Key::Number(number)) => operator.holds(*number, *value),
                    _ => false,
                }
            }
        })
    }
}

impl Operator {
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Operator::Less => left < right,
            Operator::LessOrEqual => left <= right,
            Operator::More => left > right,
            Operator::MoreOrEqual => left >= right,
            Operator::Equal => left == right,
            Operator::NotEqual => left != right,
        }
    }
}

fn compare(word: &str) -> Option<Term> {
    let (sign, operator) = OPERATORS.iter().find(|(sign, _)| word.contains(sign))?;
    let (column, value) = word.split_once(sign)?;
    let (digits, scale) = match value.chars().last()?.to_ascii_lowercase() {
        'k' => (&value[..value.len() - 1], 1024.0),
        'm' => (&value[..value.len() - 1], 1_048_576.0),
        'g' => (&value[..value.len() - 1], 1_073_741_824.0),
        _ => (value, 1.0),
    };
    let value = digits.parse::<f64>().ok()? * scale;
    (!column.is_empty()).then(|| Term::Compare { column: column.to_lowercase(), operator: *operator, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::table::Cell;

    const COLUMNS: &[Column] = &[Column::right("SIZE", "size", 6, 0), Column::left("REASON", "reason", 6, 0)];

    fn passes(filter: &str, size: f64, reason: &str) -> bool {
        let cells = vec![Cell::number(size.to_string(), size), Cell::text(reason)];
        Filter::parse(filter).passes(COLUMNS, &Row { id: String::new(), cells })
    }

    #[test]
    fn words_and_comparisons() {
        assert!(passes("", 64.0, "refill"));
        assert!(passes("FILL", 64.0, "refill"));
        assert!(!passes("flush", 64.0, "refill"));
        assert!(passes("size>=4k and refill", 4096.0, "refill"));
        assert!(!passes("size>4k", 4096.0, "refill"));
        assert!(passes("size!=64", 80.0, "x") && !passes("size=64", 80.0, "x"));
        assert!(!passes("nonsense>1", 80.0, "x"), "an unknown column matches nothing");
        assert!(!passes("size>é", 80.0, "x"), "not a number: a word that is not there");
        assert!(!passes(">", 80.0, "x"));
    }
}
