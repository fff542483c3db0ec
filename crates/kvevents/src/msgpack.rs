//! Writes MessagePack: the types that events consist of, each in its shortest form.

/// A message being written.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub(crate) fn uint(&mut self, value: u64) {
        if value < 0x80 {
            self.0.push(value as u8);
        } else if let Ok(value) = u8::try_from(value) {
            self.0.extend([0xcc, value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.0.push(0xcd);
            self.0.extend(value.to_be_bytes());
        } else if let Ok(value) = u32::try_from(value) {
            self.0.push(0xce);
            self.0.extend(value.to_be_bytes());
        } else {
            self.0.push(0xcf);
            self.0.extend(value.to_be_bytes());
        }
    }

    pub(crate) fn optional_uint(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.uint(value),
            None => self.nil(),
        }
    }

    pub(crate) fn float(&mut self, value: f64) {
        self.0.push(0xcb);
        self.0.extend(value.to_be_bytes());
    }

    /// A text of at most 255 bytes.
    pub(crate) fn text(&mut self, text: &str) {
        let length = u8::try_from(text.len()).expect("names of the schema are short");
        if length < 32 {
            self.0.push(0xa0 | length);
        } else {
            self.0.extend([0xd9, length]);
        }
        self.0.extend(text.as_bytes());
    }

    /// The head of an array; its items follow.
    pub(crate) fn array(&mut self, length: usize) {
        self.head(length, 0x90, 0xdc);
    }

    /// The head of a map; its keys and values follow in turn.
    pub(crate) fn map(&mut self, length: usize) {
        self.head(length, 0x80, 0xde);
    }

    fn head(&mut self, length: usize, short: u8, long: u8) {
        if length < 16 {
            self.0.push(short | length as u8);
        } else if let Ok(length) = u16::try_from(length) {
            self.0.push(long);
            self.0.extend(length.to_be_bytes());
        } else {
            let length = u32::try_from(length).expect("a batch is smaller than 4 GiB");
            self.0.push(long + 1);
            self.0.extend(length.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        write(&mut writer);
        writer.0
    }

    #[test]
    fn values_take_their_shortest_form() {
        // The examples of the specification: https://github.com/msgpack/msgpack/blob/master/spec.md
        for (value, bytes) in [
            (0, &[0][..]),
            (127, &[0x7f]),
            (128, &[0xcc, 0x80]),
            (255, &[0xcc, 0xff]),
            (256, &[0xcd, 1, 0]),
            (65_535, &[0xcd, 0xff, 0xff]),
            (65_536, &[0xce, 0, 1, 0, 0]),
            (u64::from(u32::MAX), &[0xce, 0xff, 0xff, 0xff, 0xff]),
            (1 << 32, &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0]),
            (u64::MAX, &[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ] {
            assert_eq!(written(|writer| writer.uint(value)), bytes, "{value}");
        }
        assert_eq!(written(|writer| writer.optional_uint(None)), [0xc0]);
        assert_eq!(written(|writer| writer.float(1.5)), [0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(written(|writer| writer.text("GPU")), [0xa3, b'G', b'P', b'U']);
        assert_eq!(written(|writer| writer.text(&"x".repeat(32)))[..2], [0xd9, 32]);
        for (length, array, map) in [
            (15, &[0x9f][..], &[0x8f][..]),
            (16, &[0xdc, 0, 16], &[0xde, 0, 16]),
            (65_536, &[0xdd, 0, 1, 0, 0], &[0xdf, 0, 1, 0, 0]),
        ] {
            assert_eq!(written(|writer| writer.array(length)), array);
            assert_eq!(written(|writer| writer.map(length)), map);
        }
    }
}
