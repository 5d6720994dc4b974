//! Masks the values of secrets in bytes that arrive in pieces. A mask is as long as what it covers, so that no length
//! changes. Pure.

use std::sync::Arc;

use bytes::Bytes;

use super::value::SecretValue;

/// What a masked byte becomes.
const MASK: u8 = b'*';

/// Masks values in one stream of bytes.
#[derive(Debug)]
pub(crate) struct Redactor {
    values: Vec<Arc<SecretValue>>,
    /// The last bytes so far, if they may be the start of a value.
    held: Vec<u8>,
    /// How many of the held bytes belong to a value that was found already.
    covered: usize,
}

impl Redactor {
    pub fn new(values: Vec<Arc<SecretValue>>) -> Self {
        Self { values, held: Vec::new(), covered: 0 }
    }

    /// Takes the next bytes. Returns what can be passed on.
    pub fn push(&mut self, more: Bytes) -> Bytes {
        if self.held.is_empty() {
            let found = self.found(&more);
            let keep_from = self.start_of_partial(&more);
            if found.is_empty() && keep_from == more.len() {
                return more;
            }
            return self.pass(more.to_vec(), &found, keep_from);
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(&more);
        let found = self.found(&all);
        let keep_from = self.start_of_partial(&all);
        self.pass(all, &found, keep_from)
    }

    /// What is left when the stream has ended.
    pub fn finish(&mut self) -> Bytes {
        let all = std::mem::take(&mut self.held);
        let end = all.len();
        self.pass(all, &[], end)
    }

    pub fn holds(&self) -> usize {
        self.held.len()
    }

    /// Masks what was found, and holds back everything from `keep_from` on.
    fn pass(&mut self, mut all: Vec<u8>, found: &[(usize, usize)], keep_from: usize) -> Bytes {
        self.held = all[keep_from..].to_vec();
        let covered = std::mem::take(&mut self.covered);
        let covers = found.iter().copied().chain([(0, covered)]);
        for (from, to) in covers {
            all[from..to].fill(MASK);
            self.covered = self.covered.max(to.saturating_sub(keep_from));
        }
        all.truncate(keep_from);
        all.into()
    }

    /// Where values are, as ranges that may overlap.
    fn found(&self, bytes: &[u8]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for form in self.values.iter().flat_map(|value| value.forms()) {
            let length = form.needle().len();
            let mut from = 0;
            while let Some(at) = form.find(&bytes[from..]) {
                found.push((from + at, from + at + length));
                from += at + 1;
            }
        }
        found
    }

    /// The first place from which on the bytes are the start of a value; the end if there is none.
    fn start_of_partial(&self, bytes: &[u8]) -> usize {
        let forms = self.values.iter().flat_map(|value| value.forms());
        let starts = forms.map(|form| {
            let form = form.needle();
            let first = bytes.len().saturating_sub(form.len() - 1);
            (first..bytes.len()).find(|at| form.starts_with(&bytes[*at..])).unwrap_or(bytes.len())
        });
        starts.min().unwrap_or(bytes.len())
    }
}

/// A text with all values masked.
pub(crate) fn redacted(values: &[Arc<SecretValue>], text: &[u8]) -> Bytes {
    let mut redactor = Redactor::new(values.to_vec());
    let mut bytes = redactor.push(Bytes::copy_from_slice(text)).to_vec();
    bytes.extend_from_slice(&redactor.finish());
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(texts: &[&str]) -> Vec<Arc<SecretValue>> {
        texts.iter().map(|text| Arc::new(SecretValue::new((*text).to_owned()).unwrap())).collect()
    }

    fn in_pieces(values: &[Arc<SecretValue>], text: &str, size: usize) -> String {
        let mut redactor = Redactor::new(values.to_vec());
        let mut all = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            all.extend_from_slice(&redactor.push(Bytes::copy_from_slice(piece)));
        }
        all.extend_from_slice(&redactor.finish());
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn a_value_is_masked_however_the_bytes_are_cut() {
        let cases: &[(&[&str], &str, &str)] = &[
            (&["topsecret"], "a topsecret b", "a ********* b"),
            (&["topsecret"], "topsecre", "topsecre"),
            (&["topsecret"], "toptopsecrettop", "top*********top"),
            (&["abababab"], "xababababababx", "x************x"),
            (&["topsecret", "secretary"], "topsecretary", "************"),
            (&["topsecret"], "746f70736563726574", "******************"),
            // `u:topsecret` in base64: the digits that the value alone decides.
            (&["topsecret"], "dTp0b3BzZWNyZXQ=", "dTp***********Q="),
            (&["top secret"], "k=top%20secret&l=top+secret", "k=************&l=**********"),
            (
                &["Top/Secret"],
                "Top%2FSecret Top%2fSecret Top\\/Secret",
                "************ ************ ***********",
            ),
        ];
        for (secrets, text, expected) in cases {
            let values = values(secrets);
            for size in 1..=text.len() {
                assert_eq!(in_pieces(&values, text, size), *expected, "{text} in {size}");
            }
        }
    }

    #[test]
    fn bytes_without_a_value_pass_at_once() {
        let mut redactor = Redactor::new(values(&["topsecret"]));
        let event = Bytes::from_static(b"data: {\"text\": \"hello\"}\n\n");
        let passed = redactor.push(event.clone());
        assert_eq!(passed.as_ptr(), event.as_ptr(), "no copy is made");
        assert_eq!(redactor.holds(), 0);
    }
}
