//! tf.Example and the message of docs/formats/sample.proto as `prost` derives them, and their framings: the writer and
//! reader that ours is held against. Knows nothing of ours.

#![allow(missing_docs, reason = "the messages are those of the .proto files")]

use std::collections::BTreeMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Example {
    #[prost(message, optional, tag = "1")]
    pub features: Option<Features>,
}

/// An [`Example`] whose map is written as on the wire, as repeated entries: `prost` checks the wire type of these,
/// but not of the entries of a map.
#[derive(Clone, PartialEq, Message)]
pub struct EntriesExample {
    #[prost(message, optional, tag = "1")]
    pub features: Option<Entries>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Entries {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Feature>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Features {
    #[prost(btree_map = "string, message", tag = "1")]
    pub feature: BTreeMap<String, Feature>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Feature {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    pub kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Floats(FloatList),
    #[prost(message, tag = "3")]
    Ints(Int64List),
}

#[derive(Clone, PartialEq, Message)]
pub struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FloatList {
    #[prost(float, repeated, tag = "1")]
    pub value: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    pub value: Vec<i64>,
}

/// The lists as a writer of proto2 lays them out.
#[derive(Clone, PartialEq, Message)]
pub struct UnpackedFeature {
    #[prost(message, optional, tag = "2")]
    pub floats: Option<UnpackedFloats>,
    #[prost(message, optional, tag = "3")]
    pub ints: Option<UnpackedInts>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UnpackedFloats {
    #[prost(float, repeated, packed = "false", tag = "1")]
    pub value: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UnpackedInts {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    #[prost(float, optional, tag = "1")]
    pub label: Option<f32>,
    #[prost(message, repeated, tag = "2")]
    pub sparse: Vec<SparseSlot>,
    #[prost(message, repeated, tag = "3")]
    pub dense: Vec<DenseSlot>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SparseSlot {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(fixed64, repeated, tag = "2")]
    pub keys: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DenseSlot {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(float, repeated, tag = "2")]
    pub values: Vec<f32>,
}

/// A sample whose slots have unpacked lists.
#[derive(Clone, PartialEq, Message)]
pub struct UnpackedSample {
    #[prost(message, repeated, tag = "2")]
    pub sparse: Vec<UnpackedSparse>,
    #[prost(message, repeated, tag = "3")]
    pub dense: Vec<UnpackedDense>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UnpackedSparse {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(fixed64, repeated, packed = "false", tag = "2")]
    pub keys: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UnpackedDense {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(float, repeated, packed = "false", tag = "2")]
    pub values: Vec<f32>,
}

pub fn bytes(values: &[&[u8]]) -> Feature {
    Feature { kind: Some(Kind::Bytes(BytesList { value: values.iter().map(|it| it.to_vec()).collect() })) }
}

pub fn floats(values: &[f32]) -> Feature {
    Feature { kind: Some(Kind::Floats(FloatList { value: values.to_vec() })) }
}

pub fn ints(values: &[i64]) -> Feature {
    Feature { kind: Some(Kind::Ints(Int64List { value: values.to_vec() })) }
}

pub fn example(features: impl IntoIterator<Item = (&'static str, Feature)>) -> Example {
    let feature = features.into_iter().map(|(name, feature)| (name.to_string(), feature)).collect();
    Example { features: Some(Features { feature }) }
}

/// As the documentation of TensorFlow has it.
#[allow(clippy::manual_rotate)] // to be seen to be the documented formula
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    let crc = crc32c::crc32c(bytes);
    ((crc >> 15) | (crc << 17)).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// A record of a TFRecord file.
pub fn tfrecord(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), data, &masked_crc(data)].concat()
}

/// A message behind its length.
pub fn delimited(data: &[u8]) -> Vec<u8> {
    let mut framed = Vec::new();
    prost::encoding::encode_varint(data.len() as u64, &mut framed);
    framed.extend_from_slice(data);
    framed
}
