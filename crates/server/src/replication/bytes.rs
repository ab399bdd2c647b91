//! Numbers, lists and texts of messages between servers as bytes, and back. It trusts no length.

/// Longest description of a table.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Why bytes are no message.
pub(super) type Malformed = &'static str;

/// Writes numbers, the lowest byte first; a list is its length and its elements.
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Numbers one after the other, little-endian as in memory: a push has tens of thousands.
    fn list<T: bytemuck::NoUninit>(&mut self, values: &[T]) {
        const { assert!(cfg!(target_endian = "little")) };
        self.u32(values.len() as u32);
        self.0.extend_from_slice(bytemuck::cast_slice(values));
    }

    pub(super) fn u64s(&mut self, values: &[u64]) {
        self.list(values);
    }

    pub(super) fn u32s(&mut self, values: &[u32]) {
        self.list(values);
    }

    pub(super) fn f32s(&mut self, values: &[f32]) {
        self.list(values);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// Reads what [`Out`] writes.
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or("it is cut")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag is neither 0 nor 1"),
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of elements that follow, each of at least `bytes_min` bytes.
    pub(super) fn count(&mut self, bytes_min: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count.saturating_mul(bytes_min) > self.0.len() { Err("it is cut") } else { Ok(count) }
    }

    fn list<const N: usize, T>(&mut self, of: impl Fn([u8; N]) -> T) -> Result<Vec<T>, Malformed> {
        let count = self.count(N)?;
        let bytes = self.take(count * N)?;
        let (elements, _) = bytes.as_chunks::<N>();
        Ok(elements.iter().map(|&element| of(element)).collect())
    }

    pub(super) fn u64s(&mut self) -> Result<Vec<u64>, Malformed> {
        self.list(u64::from_le_bytes)
    }

    pub(super) fn u32s(&mut self) -> Result<Vec<u32>, Malformed> {
        self.list(u32::from_le_bytes)
    }

    pub(super) fn f32s(&mut self) -> Result<Vec<f32>, Malformed> {
        self.list(f32::from_le_bytes)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        let count = self.count(1)?;
        if count > TEXT_BYTES_MAX {
            return Err("a text is too long");
        }
        std::str::from_utf8(self.take(count)?).map_err(|_| "a text is not UTF-8")
    }
}
