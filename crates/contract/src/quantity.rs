//! Amounts as Kubernetes writes them: `500m`, `1.5Gi`, `12e6`.

use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

/// A valid, non-negative amount: as it was written, and in thousandths, rounded up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    written: String,
    thousandths: u128,
}

impl Quantity {
    pub fn parse(text: &str) -> Option<Self> {
        let number_ends = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, suffix) = text.split_at(number_ends);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let (numerator, denominator) = multiplier(suffix)?;
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?.checked_mul(denominator)?;
        let thousandths = digits.checked_mul(numerator)?.checked_mul(1000)?.div_ceil(scale);
        Some(Self { written: text.to_owned(), thousandths })
    }

    pub fn mebibytes(count: u128) -> Self {
        Self { written: format!("{count}Mi"), thousandths: count.saturating_mul(1000 << 20) }
    }

    /// Both together, in whole units.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let units = self.units().saturating_add(other.units());
        Self { written: units.to_string(), thousandths: units.saturating_mul(1000) }
    }

    /// However both are written.
    pub fn exceeds(&self, other: &Self) -> bool {
        self.thousandths > other.thousandths
    }

    /// Whole units, rounded up.
    pub fn units(&self) -> u128 {
        self.thousandths.div_ceil(1000)
    }

    pub fn to_written(&self) -> Written {
        Written(self.written.clone())
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.written.fmt(formatter)
    }
}

/// Numerator and denominator of a suffix.
fn multiplier(suffix: &str) -> Option<(u128, u128)> {
    let decimal = |power: u32| 10_u128.checked_pow(power).map(|value| (value, 1));
    match suffix {
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "" => Some((1, 1)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => Some((1 << 10, 1)),
        "Mi" => Some((1 << 20, 1)),
        "Gi" => Some((1 << 30, 1)),
        "Ti" => Some((1 << 40, 1)),
        "Pi" => Some((1 << 50, 1)),
        "Ei" => Some((1 << 60, 1)),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            match exponent.strip_prefix('-') {
                Some(digits) => Some((1, 10_u128.checked_pow(digits.parse().ok()?)?)),
                None => decimal(exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read() {
        for (text, units) in [
            ("0", 0),
            ("1", 1),
            ("500m", 1),
            ("1500m", 2),
            ("1.5Gi", 1_610_612_736),
            (".5Ki", 512),
            ("2.", 2),
            ("12e6", 12_000_000),
            ("1E3", 1000),
            ("5E", 5_000_000_000_000_000_000),
            ("1e-3", 1),
            ("100n", 1),
        ] {
            assert_eq!(Quantity::parse(text).map(|quantity| quantity.units()), Some(units), "{text}");
        }
    }

    #[test]
    fn amounts_are_compared_and_added() {
        let parse = |text| Quantity::parse(text).unwrap();
        assert!(parse("1Gi").exceeds(&parse("1000Mi")) && !parse("100m").exceeds(&parse("1")));
        assert_eq!(parse("1Gi").plus(&parse("1Mi")).to_string(), (1025_u64 << 20).to_string());
        assert_eq!(Quantity::mebibytes(3), parse("3Mi"));
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", ".", "-1", "1 Gi", "1gi", "1.2.3", "Gi", "1e", "1e99", "ten", "1Gi "] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }
}
