//! Cuts the JSON of a list into its items while it arrives.
//!
//! A page of a list is as large as the authors of its objects make it: a hundred objects of a megabyte each are more than
//! fits into a program's limit. What is held here is one item, and what stands around the items.

/// An item that was larger than this does not keep its memory for those after it.
const KEPT_FOR_THE_NEXT: usize = 64 * 1024;
/// How many brackets are open between items: `{"items":[`. No list has another array there.
const BETWEEN_ITEMS: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct Cutter {
    /// How many objects and arrays are open.
    depth: usize,
    in_items: bool,
    in_string: bool,
    escaped: bool,
    item: Vec<u8>,
    rest: Vec<u8>,
}

impl Cutter {
    /// Takes bytes until an item is whole or there are no more. Returns how many it took, and whether an item is whole.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut begin = 0;
        for (at, byte) in bytes.iter().enumerate() {
            let was_in_item = self.is_in_item();
            self.step(*byte);
            match (was_in_item, self.is_in_item()) {
                (true, true) => {}
                (false, true) => begin = at,
                (true, false) => {
                    self.item.extend_from_slice(&bytes[begin..=at]);
                    return (at + 1, true);
                }
                // Not the commas between items: without those, the rest is the JSON of an empty list.
                (false, false) if self.in_items && *byte != b'[' => {}
                (false, false) => self.rest.push(*byte),
            }
        }
        if self.is_in_item() {
            self.item.extend_from_slice(&bytes[begin..]);
        }
        (bytes.len(), false)
    }

    /// Reads the item that is whole, and forgets it.
    pub(crate) fn item<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> T {
        let done = read(&self.item);
        self.item.clear();
        self.item.shrink_to(KEPT_FOR_THE_NEXT);
        done
    }

    /// The list without its items, when all bytes were taken.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.rest
    }

    fn is_in_item(&self) -> bool {
        self.in_items && self.depth > BETWEEN_ITEMS
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.depth += 1;
                self.in_items |= byte == b'[' && self.depth == BETWEEN_ITEMS;
            }
            b'}' | b']' => {
                self.in_items &= self.depth != BETWEEN_ITEMS;
                self.depth = self.depth.saturating_sub(1);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn cut(text: &[u8], chunk: usize) -> (Vec<Value>, Value) {
        let (mut cutter, mut items) = (Cutter::default(), Vec::new());
        for mut bytes in text.chunks(chunk) {
            while !bytes.is_empty() {
                let (taken, whole) = cutter.take(bytes);
                bytes = &bytes[taken..];
                if whole {
                    items.push(cutter.item(|bytes| serde_json::from_slice(bytes)).unwrap());
                }
            }
        }
        (items, serde_json::from_slice(cutter.rest()).unwrap())
    }

    #[test]
    fn metadata_may_stand_on_either_side_of_the_items() {
        for text in [
            r#"{"kind":"L","metadata":{"resourceVersion":"7"},"items":[{"a":[1,{"b":"}]"}]}, {"c":"\"]\\"}]}"#,
            r#"{"items":[{"a":[1,{"b":"}]"}]},{"c":"\"]\\"}],"kind":"L","metadata":{"resourceVersion":"7"}}"#,
        ] {
            let (items, rest) = cut(text.as_bytes(), 3);
            assert_eq!(items, [json!({"a": [1, {"b": "}]"}]}), json!({"c": "\"]\\"})]);
            assert_eq!(rest, json!({"kind": "L", "metadata": {"resourceVersion": "7"}, "items": []}));
        }
        assert_eq!(cut(br#"{"items":[]}"#, 1), (vec![], json!({"items": []})));
        assert_eq!(cut(br#"{"items":null}"#, 1), (vec![], json!({"items": null})));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from), ".*".prop_map(Value::from)];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_the_items_are_and_wherever_the_chunks_end(
            objects in prop::collection::vec(prop::collection::btree_map(".*", any_json(), 0..4), 0..5),
            version in ".*", chunk in 1_usize..64, pretty in any::<bool>(),
        ) {
            let list = json!({"metadata": {"resourceVersion": version}, "items": objects});
            let text = if pretty { serde_json::to_vec_pretty(&list) } else { serde_json::to_vec(&list) }.unwrap();
            let (items, rest) = cut(&text, chunk);
            prop_assert_eq!(json!(items), list["items"].clone());
            prop_assert_eq!(rest, json!({"metadata": {"resourceVersion": version}, "items": []}));
        }
    }
}
