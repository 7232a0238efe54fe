//! Exact arithmetic: rational numbers of any size, within limits that keep it quick.

use num_bigint::BigInt;
use num_rational::BigRational;
use oxiline_graph::{Error, Result};

/// Longest expression, bytes.
const MAX_TEXT: usize = 10_000;
/// Deepest nesting of parentheses, signs and powers.
const MAX_DEPTH: usize = 100;
/// Largest number, bits of numerator and denominator together: about 6000 digits.
const MAX_BITS: u64 = 20_000;
/// Largest factorial.
const MAX_FACTORIAL: u32 = 2_000;
/// Digits of a result that has no end.
const DIGITS: u32 = 30;

/// Computes an arithmetic expression exactly: `+ - * / % ^` (or `**`), `!`, parentheses, `abs`, `floor`,
/// `ceil`, `round`, `sqrt`, `min`, `max`. A result without an end is told as a fraction and rounded.
///
/// # Errors
/// A sentence with the place where the expression cannot be read, or why it has no value.
pub fn calculate(text: &str) -> Result<String> {
    if text.len() > MAX_TEXT {
        return Err(Error::msg(format_args!("the expression is longer than {MAX_TEXT} bytes")));
    }
    let mut parser = Parser { text, at: 0, depth: 0, rounded: false };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(show(&value, parser.rounded)),
        Some(c) => Err(parser.error(&format!("`{c}` was not expected"))),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// A square root was rounded on the way.
    rounded: bool,
}

impl Parser<'_> {
    fn error(&self, what: &str) -> Error {
        Error::msg(format_args!("{what} at character {}", self.text[..self.at].chars().count() + 1))
    }

    fn peek(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.text[self.at..].chars().next()
    }

    fn eat(&mut self, wanted: &[&str]) -> bool {
        self.peek();
        let found = wanted.iter().find(|w| self.text[self.at..].starts_with(**w));
        self.at += found.map_or(0, |w| w.len());
        found.is_some()
    }

    fn checked(&self, value: BigRational) -> Result<BigRational> {
        if value.numer().bits() + value.denom().bits() > MAX_BITS {
            return Err(self.error("the number becomes too large"));
        }
        Ok(value)
    }

    fn sum(&mut self) -> Result<BigRational> {
        let mut value = self.product()?;
        loop {
            if self.eat(&["+"]) {
                value = self.product()? + value;
            } else if self.eat(&["-", "−", "–"]) {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
            value = self.checked(value)?;
        }
    }

    fn product(&mut self) -> Result<BigRational> {
        let mut value = self.signed()?;
        loop {
            // `**` is a power and was taken by then.
            if self.eat(&["*", "×", "·"]) {
                value *= self.signed()?;
            } else if self.eat(&["/", "÷"]) {
                let by = self.signed()?;
                self.not_zero(&by)?;
                value /= by;
            } else if self.eat(&["%", "mod"]) {
                let by = self.signed()?;
                self.not_zero(&by)?;
                value = &value - (&value / &by).floor() * &by;
            } else {
                return Ok(value);
            }
            value = self.checked(value)?;
        }
    }

    fn not_zero(&self, by: &BigRational) -> Result<()> {
        if *by.numer() == BigInt::ZERO { Err(self.error("division by zero")) } else { Ok(()) }
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("the expression is nested too deeply"));
        }
        let value = work(self);
        self.depth -= 1;
        value
    }

    /// A sign binds less than a power: -2^2 is -4.
    fn signed(&mut self) -> Result<BigRational> {
        if self.eat(&["-", "−", "–"]) {
            return Ok(-self.deeper(Self::signed)?);
        }
        if self.eat(&["+"]) {
            return self.deeper(Self::signed);
        }
        let base = self.postfix()?;
        if !self.eat(&["^", "**"]) {
            return Ok(base);
        }
        let exponent = self.deeper(Self::signed)?;
        self.power(base, &exponent)
    }

    fn power(&mut self, base: BigRational, exponent: &BigRational) -> Result<BigRational> {
        if !exponent.is_integer() {
            if *exponent == BigRational::new(1.into(), 2.into()) {
                return self.root(&base);
            }
            return Err(self.error("only whole exponents (and 1/2) can be computed exactly"));
        }
        let Ok(n) = i32::try_from(exponent.numer()) else { return Err(self.error("the exponent is too large")) };
        if n < 0 {
            self.not_zero(&base)?;
        }
        // Said before it is computed: 1 and -1 stay small whatever the exponent.
        let bits = base.numer().bits().max(base.denom().bits()).saturating_sub(1);
        if bits.saturating_mul(n.unsigned_abs().into()) > MAX_BITS {
            return Err(self.error("the number becomes too large"));
        }
        if bits == 0 && base.is_integer() {
            let odd = n % 2 != 0;
            return Ok(if n == 0 {
                whole(1)
            } else if odd {
                base
            } else {
                &base * &base
            });
        }
        self.checked(base.pow(n))
    }

    fn postfix(&mut self) -> Result<BigRational> {
        let mut value = self.atom()?;
        while self.eat(&["!"]) {
            let n = u32::try_from(value.numer()).ok().filter(|n| value.is_integer() && *n <= MAX_FACTORIAL);
            let n = n.ok_or_else(|| self.error(&format!("factorials go from 0 to {MAX_FACTORIAL}")))?;
            value = (2..=n).fold(BigInt::from(1), |product, k| product * k).into();
            value = self.checked(value)?;
        }
        Ok(value)
    }

    fn atom(&mut self) -> Result<BigRational> {
        match self.peek() {
            Some('(') => {
                self.at += 1;
                let value = self.deeper(Self::sum)?;
                if self.eat(&[")"]) { Ok(value) } else { Err(self.error("`)` is missing")) }
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_ascii_alphabetic() => self.function(),
            Some(c) => Err(self.error(&format!("`{c}` is no number"))),
            None => Err(self.error("a number is missing")),
        }
    }

    fn number(&mut self) -> Result<BigRational> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_'))).unwrap_or(rest.len());
        let mut written = rest[..end].replace('_', "");
        let mut used = end;
        let mut shift = 0i32;
        // 1.5e3, but not the e of a word.
        if let Some(tail) = rest[end..].strip_prefix(['e', 'E']) {
            let digits = tail.strip_prefix(['+', '-']).unwrap_or(tail);
            let many = digits.bytes().take_while(u8::is_ascii_digit).count();
            if many > 0 {
                let sign = tail.len() - digits.len();
                shift = tail[..sign + many].parse().map_err(|_| self.error("the exponent is too large"))?;
                used += 1 + sign + many;
            }
        }
        if let Some((a, b)) = written.clone().split_once('.') {
            if b.contains('.') || (a.is_empty() && b.is_empty()) {
                return Err(self.error(&format!("`{}` is no number", &rest[..end])));
            }
            shift = shift.saturating_sub(i32::try_from(b.len()).unwrap_or(i32::MAX));
            written = format!("{a}{b}");
        }
        if u64::from(shift.unsigned_abs()) * 4 > MAX_BITS {
            return Err(self.error("the number is too large"));
        }
        let digits: BigInt = written.parse().map_err(|_| self.error(&format!("`{}` is no number", &rest[..end])))?;
        self.at += used;
        self.checked(BigRational::from(digits) * whole(10).pow(shift))
    }

    fn function(&mut self) -> Result<BigRational> {
        let rest = &self.text[self.at..];
        let name = &rest[..rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len())];
        let known = ["abs", "floor", "ceil", "round", "sqrt", "min", "max"];
        if !known.contains(&name) {
            return Err(self.error(&format!("`{name}` is not known; there are {}", known.join(", "))));
        }
        self.at += name.len();
        if !self.eat(&["("]) {
            return Err(self.error("`(` is missing"));
        }
        let mut values = vec![self.deeper(Self::sum)?];
        while self.eat(&[","]) {
            values.push(self.deeper(Self::sum)?);
        }
        if !self.eat(&[")"]) {
            return Err(self.error("`)` is missing"));
        }
        match (name, values.as_slice()) {
            ("min", _) => values.into_iter().min().ok_or_else(|| self.error("a number is missing")),
            ("max", _) => values.into_iter().max().ok_or_else(|| self.error("a number is missing")),
            ("abs", [v]) => Ok(if *v.numer() < BigInt::ZERO { -v } else { v.clone() }),
            ("floor", [v]) => Ok(v.floor()),
            ("ceil", [v]) => Ok(v.ceil()),
            ("round", [v]) => Ok(v.round()),
            ("sqrt", [v]) => self.root(v),
            _ => Err(self.error(&format!("`{name}` takes one number"))),
        }
    }

    fn root(&mut self, value: &BigRational) -> Result<BigRational> {
        if *value.numer() < BigInt::ZERO {
            return Err(self.error("a negative number has no square root"));
        }
        let exact = BigRational::new(value.numer().sqrt(), value.denom().sqrt());
        if &exact * &exact == *value {
            return Ok(exact);
        }
        self.rounded = true;
        let scale = BigInt::from(10).pow(2 * DIGITS + 10);
        let root = (value * BigRational::from(&scale * &scale)).floor().to_integer().sqrt();
        Ok(BigRational::new(root, scale))
    }
}

fn whole(n: i64) -> BigRational {
    BigRational::from(BigInt::from(n))
}

/// A decimal where it ends, else a fraction with its rounded value.
fn show(value: &BigRational, rounded: bool) -> String {
    if value.is_integer() {
        return if rounded { format!("≈ {}", value.numer()) } else { value.numer().to_string() };
    }
    let places = if rounded { None } else { ends_after(value.denom()) };
    match places {
        Some(places) => decimal(value, places),
        None if rounded => format!("≈ {}", decimal(value, DIGITS)),
        None => format!("{}/{} ≈ {}", value.numer(), value.denom(), decimal(value, DIGITS)),
    }
}

/// Digits after the point of a fraction with this denominator, when they end.
fn ends_after(denom: &BigInt) -> Option<u32> {
    let (mut rest, mut twos, mut fives) = (denom.clone(), 0, 0);
    for (factor, count) in [(2, &mut twos), (5, &mut fives)] {
        while &rest % factor == BigInt::ZERO {
            rest /= factor;
            *count += 1;
        }
    }
    (rest == BigInt::from(1)).then_some(twos.max(fives))
}

/// Rounded to so many digits after the point, without zeros at the end.
fn decimal(value: &BigRational, places: u32) -> String {
    let scaled = (value * BigRational::from(BigInt::from(10).pow(places))).round().to_integer();
    let sign = if scaled < BigInt::ZERO { "-" } else { "" };
    let digits = scaled.magnitude().to_string();
    let width = places as usize + 1;
    let digits = format!("{digits:0>width$}");
    let (a, b) = digits.split_at(digits.len() - places as usize);
    let b = b.trim_end_matches('0');
    if b.is_empty() { format!("{sign}{a}") } else { format!("{sign}{a}.{b}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_exact() {
        let cases = [
            ("1234.5*6789-2^20", "7332444.5"),
            ("0.1+0.2", "0.3"),
            ("2^100", "1267650600228229401496703205376"),
            ("-2^2", "-4"),
            ("2^-2", "0.25"),
            ("2^3^2", "512"),
            ("(1+2)*3 - 4/8", "8.5"),
            ("1/3", "1/3 ≈ 0.333333333333333333333333333333"),
            ("1/3*3", "1"),
            ("-7 % 3", "2"),
            ("10!/8!", "90"),
            ("sqrt(2.25) + 4^(1/2)", "3.5"),
            ("sqrt(2)", "≈ 1.414213562373095048801688724210"),
            ("max(1, 2.5, -3) + abs(-1) + floor(2.9) + ceil(2.1) + round(2.5)", "11.5"),
            ("1.5e3 + 1_000", "2500"),
            ("7 × 6 ÷ 2 − 1", "20"),
            ("(-1)^1000001", "-1"),
            (".5*2", "1"),
            ("-0.05", "-0.05"),
            ("1e-40", "0.0000000000000000000000000000000000000001"),
        ];
        for (text, want) in cases {
            let want =
                want.strip_suffix("210").map_or(want, |s| if text == "sqrt(2)" { &want[..s.len() + 2] } else { want });
            assert_eq!(calculate(text).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn what_has_no_value_is_one_sentence_and_quick() {
        let deep = format!("{}1{}", "(".repeat(200), ")".repeat(200));
        let minus = "-".repeat(5000) + "1";
        let long = "1+".repeat(9000);
        let cases = [
            ("", "missing at character 1"),
            ("2+", "a number is missing"),
            ("1/0", "division by zero"),
            ("0^-1", "division by zero"),
            ("5 % (2-2)", "division by zero"),
            ("9^9^9", "too large"),
            ("2^100000", "too large"),
            ("1e999999999", "too large"),
            ("99999!", "factorials"),
            ("(1", "`)` is missing"),
            ("1)", "`)` was not expected"),
            ("1.2.3", "no number"),
            (".", "no number"),
            ("2 ^ 0.3", "whole exponents"),
            ("sqrt(-1)", "negative"),
            ("sin(1)", "is not known"),
            ("abs(1, 2)", "takes one"),
            ("€5", "`€` is no number"),
            (&deep, "too deeply"),
            (&minus, "too deeply"),
            (&long, "longer than"),
        ];
        for (text, want) in cases {
            let error = calculate(text).unwrap_err().to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
