//! Profiles: how far an arena grows and shrinks by itself, in the words of the OpenSIPS worker autoscaler.
//!
//! ```text
//! scale up to 2g on 70% for 3 cycles within 10 / scale down to 256m on 30% for 20 cycles
//! ```
//! *Up*: when in `for` of the last `within` cycles (as many as `for`, where that is left out) the live memory was at least
//! that share of the committed, commit more, up to the size. *Down*: when it was at most that share in so many cycles in a row,
//! give back, down to the size. A profile without `scale down` never shrinks.
//!
//! The rules stand in any order, apart by white space, a line's end, or one of `/` `,` `;`. Words may be in either case, and
//! `cycle` may stand for `cycles`. A size without unit is in MiB, as there.
//!
//! Reads text, owns nothing, allocates nothing, and never panics whatever the text. Called by `config.rs` once, and by tools
//! that check a profile before it is used.

use super::scanner::Scanner;
pub use super::size::Size;

/// Cycles that a rule may count, and a window may have.
pub const MOST_CYCLES: u16 = 1000;

/// When an arena grows and shrinks by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// When to commit more.
    pub up: ScaleUp,
    /// When to give back; without it memory is never given back.
    pub down: Option<ScaleDown>,
}

/// `scale up to SIZE on PERCENT% for CYCLES cycles within WITHIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleUp {
    /// The ceiling: the most that is ever committed, bytes.
    pub to_bytes: u64,
    /// Live memory in percent of the committed, from which a cycle counts.
    pub percent: u8,
    /// Cycles that must count.
    pub cycles: u16,
    /// Of so many last ones.
    pub within: u16,
}

/// `scale down to SIZE on PERCENT% for CYCLES cycles`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleDown {
    /// The floor: what stays committed whatever the load, bytes.
    pub to_bytes: u64,
    /// Live memory in percent of the committed, down to which a cycle counts.
    pub percent: u8,
    /// Cycles in a row that must count.
    pub cycles: u16,
}

/// What is wrong with a text, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Line, from 1.
    pub line: u32,
    /// Character of the line, from 1.
    pub column: u32,
    /// What is wrong there.
    pub reason: Reason,
}

/// Declares the reasons with their labels.
macro_rules! reasons {
    ($($(#[$meta:meta])* $name:ident, $label:literal;)*) => {
        /// What is wrong with the text of a profile, or of an `INIT:CAP` size.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason { $($(#[$meta])* $name),* }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// What to write there, or what is wrong.
            pub const fn label(self) -> &'static str {
                match self { $(Reason::$name => $label),* }
            }
        }
    };
}

reasons! {
    /// No rule begins here.
    Scale, "want `scale up to SIZE on PERCENT% for COUNT cycles`";
    /// Neither direction.
    Direction, "want `up` or `down`";
    /// No `to`.
    To, "want `to`";
    /// No `on`.
    On, "want `on`";
    /// No `for`.
    For, "want `for`";
    /// No `cycles`.
    Cycles, "want `cycles`";
    /// No size, or zero.
    Size, "want a size above 0, such as 512m or 2g";
    /// An unknown unit.
    Unit, "want the unit k, m, g or t";
    /// A size beyond any address space.
    SizeLimit, "want a size of at most 64t";
    /// No percentage, or an impossible one.
    Percent, "want a percentage from 1 to 100";
    /// A number where a percentage is due.
    PercentSign, "want `%`";
    /// No number of cycles, or an impossible one.
    Count, "want a number of cycles from 1 to 1000";
    /// A window shorter than the cycles that must count in it.
    Window, "want a window from the cycles after `for` to 1000";
    /// A window in a rule that has none.
    DownWindow, "`within` belongs to `scale up`";
    /// A second rule of the same direction.
    Twice, "this rule is there already";
    /// Text behind both rules.
    Trailing, "want nothing after the two rules";
    /// A profile that only shrinks.
    NoUp, "`scale up` is missing";
    /// A floor that is not below the ceiling.
    Floor, "want a size below that of `scale up`";
    /// Thresholds the wrong way round: the arena would grow and shrink in turns.
    Thresholds, "want a percentage below that of `scale up`";
    /// No colon after INIT.
    Colon, "want `:` and the cap, or nothing";
    /// A cap below INIT.
    CapBelowInit, "want a cap of at least the initial size";
    /// A cap too small for an arena.
    CapLimit, "want a cap of at least 16m";
}

/// What both rules have in common: `to SIZE on PERCENT% for CYCLES cycles`.
struct Rule {
    to_bytes: u64,
    percent: u8,
    cycles: u16,
    /// Where the size and the percentage stand, which are compared with those of the other rule.
    size_place: usize,
    percent_place: usize,
}

impl Profile {
    /// Reads a profile. An error names the first place that cannot be understood.
    pub fn parse(text: &str) -> Result<Profile, Error> {
        let mut scanner = Scanner::new(text);
        let (mut up, mut down) = (None, None);
        loop {
            let place = scanner.place();
            let reason = if up.is_some() && down.is_some() { Reason::Trailing } else { Reason::Scale };
            scanner.expect(&["scale"], reason)?;
            let is_up = scanner.expect(&["up", "down"], Reason::Direction)? == 0;
            if if is_up { up.is_some() } else { down.is_some() } {
                return Err(scanner.error(place, Reason::Twice));
            }
            let rule = Rule::read(&mut scanner)?;
            let within_place = scanner.place();
            match (is_up, scanner.accept(&["within"]).is_some()) {
                (true, true) => up = Some((window(&mut scanner, rule.cycles)?, rule)),
                (true, false) => up = Some((rule.cycles, rule)),
                (false, true) => return Err(scanner.error(within_place, Reason::DownWindow)),
                (false, false) => down = Some(rule),
            }
            if scanner.is_done() {
                break;
            }
            scanner.accept_mark(&['/', ',', ';']);
        }
        let end = scanner.place();
        let (within, up) = up.ok_or_else(|| scanner.error(end, Reason::NoUp))?;
        if let Some(down) = &down {
            if down.to_bytes >= up.to_bytes {
                return Err(scanner.error(down.size_place, Reason::Floor));
            }
            if down.percent >= up.percent {
                return Err(scanner.error(down.percent_place, Reason::Thresholds));
            }
        }
        Ok(Profile {
            up: ScaleUp { to_bytes: up.to_bytes, percent: up.percent, cycles: up.cycles, within },
            down: down.map(|Rule { to_bytes, percent, cycles, .. }| ScaleDown { to_bytes, percent, cycles }),
        })
    }
}

impl Rule {
    fn read(scanner: &mut Scanner) -> Result<Rule, Error> {
        scanner.expect(&["to"], Reason::To)?;
        let size_place = scanner.place();
        let to_bytes = scanner.size()?;
        scanner.expect(&["on"], Reason::On)?;
        let percent_place = scanner.place();
        let percent = scanner.number(1, 100, Reason::Percent)? as u8;
        let sign = scanner.place();
        if !scanner.accept_mark(&['%']) {
            return Err(scanner.error(sign, Reason::PercentSign));
        }
        scanner.expect(&["for"], Reason::For)?;
        let cycles = scanner.number(1, MOST_CYCLES.into(), Reason::Count)? as u16;
        scanner.expect(&["cycles", "cycle"], Reason::Cycles)?;
        Ok(Rule { to_bytes, percent, cycles, size_place, percent_place })
    }
}

/// The number after `within`.
fn window(scanner: &mut Scanner, cycles: u16) -> Result<u16, Error> {
    let within = scanner.number(cycles.into(), MOST_CYCLES.into(), Reason::Window)? as u16;
    scanner.accept(&["cycles", "cycle"]);
    Ok(within)
}
