//! Figures as people read them: three significant digits, IEC for bytes, SI for counts, ns to s for durations.
//!
//! Every number on a screen or in text output goes through here, so that one quantity looks the same everywhere. JSON
//! carries plain numbers instead.

use std::time::Duration;

/// A number below 1000 in at most four characters with three significant digits.
fn three(value: f64) -> String {
    let decimals = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Divides by `base` until the number has at most three digits; the second value is how often.
fn scale(mut value: f64, base: f64, most: usize) -> (f64, usize) {
    let mut steps = 0;
    while value >= 999.5 && steps < most {
        value /= base;
        steps += 1;
    }
    (value, steps)
}

/// Bytes: `512 B`, `18.1 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (value, steps) = scale(bytes as f64, 1024.0, UNITS.len() - 1);
    match steps {
        0 => format!("{bytes} B"),
        _ => format!("{} {}", three(value), UNITS[steps]),
    }
}

/// Bytes that are a whole number of their unit as such: `4 KiB`, `640 B`, `1.25 KiB`, `2 MiB`.
pub fn whole_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        _ if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 28) => format!("{} GiB", bytes as f64 / 1_073_741_824.0),
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 18) => format!("{} MiB", bytes as f64 / 1_048_576.0),
        _ if bytes < 1 << 20 && bytes.is_multiple_of(1 << 8) => format!("{} KiB", bytes as f64 / 1024.0),
        _ => self::bytes(bytes),
    }
}

/// A size that is exact in its unit, as the sizes of classes are: `80`, `1K`, `1.25K`, `256K`.
pub fn class_size(bytes: u32) -> String {
    match bytes {
        0..1024 => bytes.to_string(),
        _ => format!("{}K", f64::from(bytes) / 1024.0),
    }
}

/// A count: `512`, `41.2k`, `1.82M`.
pub fn count(count: u64) -> String {
    if count < 1000 { count.to_string() } else { si(count as f64) }
}

/// A rate per second: `0`, `0.25`, `310`, `41.2k`; `-` while it is not known.
pub fn rate(per_second: Option<f64>) -> String {
    match per_second {
        None => "-".into(),
        Some(0.0) => "0".into(),
        Some(rate) => si(rate),
    }
}

fn si(value: f64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let (value, steps) = scale(value, 1000.0, UNITS.len() - 1);
    format!("{}{}", three(value), UNITS[steps])
}

/// A duration in six characters at most: `310ns`, `3.80µs`, `4.20ms`, `1.20s`.
pub fn ns(ns: u64) -> String {
    const UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];
    let (value, steps) = scale(ns as f64, 1000.0, UNITS.len() - 1);
    match steps {
        0 => format!("{ns}ns"),
        _ => format!("{}{}", three(value), UNITS[steps]),
    }
}

/// How long something lasts or lies back: `0.2 s`, `41 s`, `12 min`, `3h12m`, `5d03h`.
pub fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", age.as_secs_f64()),
        10..100 => format!("{seconds} s"),
        100..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A share: `83%`, `4.2%`, `-` of nothing.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let share = part as f64 * 100.0 / whole as f64;
    if share < 9.95 { format!("{share:.1}%") } else { format!("{share:.0}%") }
}

/// An errno in words: `Cannot allocate memory`.
pub fn os_error(errno: u32) -> String {
    let text = std::io::Error::from_raw_os_error(errno as i32).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Seconds since 1970 as `HH:MM:SS` UTC.
pub fn clock(unix_seconds: u64) -> String {
    format!("{:02}:{:02}:{:02}", unix_seconds / 3600 % 24, unix_seconds / 60 % 60, unix_seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits_and_iec_units() {
        for (value, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1536, "1.50 KiB"),
            (412 << 20, "412 MiB"),
            (10_234, "9.99 KiB"),
            (10_240, "10.0 KiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn counts_rates_and_durations() {
        assert_eq!(count(999), "999");
        assert_eq!(count(999_600), "1.00M");
        assert_eq!(count(41_234), "41.2k");
        assert_eq!(rate(None), "-");
        assert_eq!(rate(Some(0.0)), "0");
        assert_eq!(rate(Some(0.25)), "0.25");
        assert_eq!(ns(310), "310ns");
        assert_eq!(ns(3_804), "3.80µs");
        assert_eq!(ns(999_700), "1.00ms");
        assert_eq!(ns(u64::MAX), "18446744074s");
        assert_eq!(age(Duration::from_millis(200)), "0.2 s");
        assert_eq!(age(Duration::from_secs(11_520)), "3h12m");
        assert_eq!(age(Duration::from_secs(443_000)), "5d03h");
    }

    #[test]
    fn shares_and_sizes() {
        assert_eq!(os_error(12), "Cannot allocate memory");
        assert_eq!(percent(1, 0), "-");
        assert_eq!(percent(42, 1000), "4.2%");
        assert_eq!(percent(999, 1000), "100%");
        assert_eq!(whole_bytes(4096), "4 KiB");
        assert_eq!(whole_bytes(1280), "1.25 KiB");
        assert_eq!(whole_bytes(640), "640 B");
        assert_eq!(whole_bytes(2 << 20), "2 MiB");
        assert_eq!(whole_bytes(1 << 30), "1 GiB");
        assert_eq!(whole_bytes((1 << 30) + 1), "1.00 GiB");
        assert_eq!(class_size(80), "80");
        assert_eq!(class_size(1280), "1.25K");
        assert_eq!(class_size(262_144), "256K");
    }
}
