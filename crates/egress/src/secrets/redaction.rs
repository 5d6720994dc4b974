//! Masks the values of secrets in bytes that arrive in pieces. A mask is as long as what it covers, so that no length
//! changes. Pure.
//!
//! Which bytes are held back depends on public facts only: the length of the longest form, and the characters that a
//! value can have. If it depended on the value, code that makes a host repeat its own text could see from the borders of
//! pieces how much of a guess is right.

use std::sync::Arc;

use bytes::Bytes;

use super::value::{SecretValue, StreamEnd, UnitMatch};

/// What a masked byte becomes.
const MASK: u8 = b'*';

/// Masks values in one stream of bytes.
#[derive(Debug)]
pub(crate) struct Redactor {
    values: Vec<Arc<SecretValue>>,
    /// The longest form of any value, in bytes.
    longest: usize,
    /// The bytes with which a form can begin.
    begins: Box<[bool; 256]>,
    /// Bytes that are not passed on yet.
    held: Vec<u8>,
    /// How many held bytes were searched for starts of a form.
    searched: usize,
    /// Forms that have begun in the held bytes.
    begun: Vec<BegunForm>,
    /// Ranges of the held bytes that are values.
    found: Vec<(usize, usize)>,
}

/// A form of a value that matches the held bytes so far.
#[derive(Debug, Clone, Copy)]
struct BegunForm {
    value: usize,
    form: usize,
    start: usize,
    /// The next unit of the form, and where it must be in the held bytes.
    unit: usize,
    at: usize,
}

impl Redactor {
    pub fn new(values: Vec<Arc<SecretValue>>) -> Self {
        let mut redactor = Self {
            values: Vec::new(),
            longest: 0,
            begins: Box::new([false; 256]),
            held: Vec::new(),
            searched: 0,
            begun: Vec::new(),
            found: Vec::new(),
        };
        redactor.add(values);
        redactor
    }

    /// Adds the values that are new. They are found in the bytes that come from now on.
    pub fn add(&mut self, values: Vec<Arc<SecretValue>>) {
        for value in values {
            if self.values.iter().any(|known| Arc::ptr_eq(known, &value)) {
                continue;
            }
            for form in value.forms() {
                self.longest = self.longest.max(form.bytes_max());
                for byte in 0..=u8::MAX {
                    self.begins[usize::from(byte)] |= form.can_begin(byte);
                }
            }
            self.values.push(value);
        }
    }

    /// Takes the next bytes. Returns what can be passed on.
    pub fn push(&mut self, more: &[u8]) -> Bytes {
        self.held.extend_from_slice(more);
        self.search();
        let passed = self.held.len() - self.held_back();
        self.pass(passed)
    }

    /// What is left when the stream has ended.
    pub fn finish(&mut self) -> Bytes {
        let begun = std::mem::take(&mut self.begun);
        for mut form in begun {
            self.goes_on(&mut form, StreamEnd::Reached);
        }
        self.pass(self.held.len())
    }

    pub fn holds(&self) -> usize {
        self.held.len()
    }

    /// How many of the last bytes may be the start of a value, whatever the value is.
    fn held_back(&self) -> usize {
        let is_of_a_form = |byte: &&u8| (b' '..=b'~').contains(*byte);
        let open = self.held.iter().rev().take_while(is_of_a_form).count();
        open.min(self.longest.saturating_sub(1))
    }

    /// Looks for values in the bytes that came last.
    fn search(&mut self) {
        let mut begun = std::mem::take(&mut self.begun);
        for start in self.searched..self.held.len() {
            if !self.begins[usize::from(self.held[start])] {
                continue;
            }
            for (value, secret) in self.values.iter().enumerate() {
                for (form, one) in secret.forms().iter().enumerate() {
                    if one.can_begin(self.held[start]) {
                        begun.push(BegunForm { value, form, start, unit: 0, at: start });
                    }
                }
            }
        }
        self.searched = self.held.len();
        begun.retain_mut(|form| self.goes_on(form, StreamEnd::Open));
        self.begun = begun;
    }

    /// Compares a form with the bytes that are there. Returns whether the form may still match.
    fn goes_on(&mut self, begun: &mut BegunForm, end: StreamEnd) -> bool {
        let form = &self.values[begun.value].forms()[begun.form];
        loop {
            match form.unit(begun.unit, &self.held[begun.at..], end) {
                UnitMatch::NeedsMore => return true,
                UnitMatch::No => return false,
                UnitMatch::Bytes(length) => {
                    begun.at += length;
                    begun.unit += 1;
                    if begun.unit == form.units() {
                        self.found.push((begun.start, begun.at));
                        return false;
                    }
                }
            }
        }
    }

    /// Passes on the first bytes, with the values in them masked.
    fn pass(&mut self, count: usize) -> Bytes {
        let mut passed = std::mem::take(&mut self.held);
        self.held = passed.split_off(count);
        for (from, to) in &self.found {
            passed[(*from).min(count)..(*to).min(count)].fill(MASK);
        }
        // The rest of a value is masked when it is passed on. Until then other forms may go on in it.
        self.found.retain_mut(|(from, to)| {
            (*from, *to) = (from.saturating_sub(count), to.saturating_sub(count));
            *to > 0
        });
        self.searched = self.searched.saturating_sub(count);
        self.begun.retain_mut(|begun| {
            let stays = begun.start >= count;
            begun.start = begun.start.saturating_sub(count);
            begun.at = begun.at.saturating_sub(count);
            stays
        });
        passed.into()
    }
}

/// A text with all values masked.
pub(crate) fn redacted(redactor: &mut Redactor, text: &[u8]) -> Bytes {
    let mut bytes = redactor.push(text).to_vec();
    bytes.extend_from_slice(&redactor.finish());
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(texts: &[&str]) -> Vec<Arc<SecretValue>> {
        texts.iter().map(|text| Arc::new(SecretValue::new((*text).to_owned()).unwrap())).collect()
    }

    /// The pieces that come out for these that go in.
    fn pieces(values: &[Arc<SecretValue>], pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut redactor = Redactor::new(values.to_vec());
        let mut all: Vec<_> = pieces.iter().map(|piece| redactor.push(piece).to_vec()).collect();
        all.push(redactor.finish().to_vec());
        all
    }

    #[test]
    fn a_value_is_masked_however_the_bytes_are_cut() {
        let cases: &[(&[&str], &str, &str)] = &[
            (&["topsecret"], "a topsecret b", "a ********* b"),
            (&["topsecret"], "topsecre", "topsecre"),
            (&["topsecret"], "topsecre\ntopsecret\n", "topsecre\n*********\n"),
            (&["topsecret"], "toptopsecrettop", "top*********top"),
            (&["abababab"], "xababababababx", "x************x"),
            (&["topsecret", "secretary"], "topsecretary", "************"),
            (
                &["topsecret"],
                "746f70736563726574 746F70736563726574",
                "****************** ******************",
            ),
            // `u:topsecret` in base64: the digits that the value alone decides.
            (&["topsecret"], "dTp0b3BzZWNyZXQ=", "dTp***********Q="),
            (&["top secret"], "k=top%20secret&l=top+secret", "k=************&l=**********"),
            (
                &["Top/Secret"],
                "Top%2FSecret Top%2fSecret Top\\/Secret",
                "************ ************ ***********",
            ),
            (
                &["a+b/c=\"9x&"],
                "a%2Bb/c%3D\"9x& a\\u002Bb/c=\\\"9x&",
                "************** ****************",
            ),
            (&["a+b/c=\"9x&"], "a&#43;b&#x2F;c=&quot;9x&amp;!", "****************************!"),
            // Values that look like escapes themselves.
            (&["p%2540ss-word"], "p%2540ss-word", "*************"),
            (&["tom&amp;jerry99"], "tom&amp;jerry99", "***************"),
            (&["abcdefg%", "Asecret-two"], "abcdefg%41secret-two", "********************"),
            (&["it's-a-value"], "it&#039;s-a-value", "*****************"),
        ];
        for (secrets, text, expected) in cases {
            let values = values(secrets);
            for size in 1..=text.len() {
                let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
                let all = pieces(&values, &chunks).concat();
                assert_eq!(String::from_utf8(all).unwrap(), *expected, "{text} in {size}");
            }
        }
    }

    #[test]
    fn the_borders_of_pieces_do_not_tell_how_much_of_a_guess_is_right() {
        let values = values(&["topsecret-value"]);
        let sizes = |text: &str| -> Vec<usize> {
            let padded = format!("{}{text}", "~".repeat(500));
            pieces(&values, &[padded.as_bytes(), b"~"]).iter().map(Vec::len).collect()
        };
        let wrong = sizes("zzzzzzzzzzzzzz");
        for right in 1..14 {
            let guess = format!("{}{}", "z".repeat(14 - right), &"topsecret-value"[..right]);
            assert_eq!(sizes(&guess), wrong, "{guess}");
        }
    }

    #[test]
    fn a_line_passes_at_once() {
        let mut redactor = Redactor::new(values(&["topsecret"]));
        let event = b"data: {\"text\": \"hello\"}\n\n";
        assert_eq!(redactor.push(event), &event[..]);
        assert_eq!(redactor.holds(), 0);
    }
}
