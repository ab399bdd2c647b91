//! How full an index may be: the fewest cache lines per search, or the fewest bytes per key.

use crate::Packing;

/// Fill of the slots in percent, at the steps of an index's growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fill {
    /// After growth.
    pub(crate) grown: usize,
    /// The threshold for growth.
    pub(crate) grow: usize,
    /// The maximum if growth fails.
    pub(crate) max: usize,
    /// When the number of keys is known beforehand.
    pub(crate) reserved: usize,
    /// After the growth of an index below `small_bytes` without a budget. Such an index doubles, because copying and
    /// page faults dominate while a table is new.
    pub(crate) doubled: usize,
    pub(crate) small_bytes: usize,
}

impl Fill {
    /// 18 to 26 bytes per key; 21 where the number of keys is known beforehand.
    pub(crate) const FAST: Fill =
        Fill { grown: 50, grow: 70, max: 88, reserved: 60, doubled: 35, small_bytes: 64 << 20 };
    /// 14.7 to 16.4 bytes per key.
    pub(crate) const COMPACT: Fill =
        Fill { grown: 78, grow: 87, max: 95, reserved: 85, doubled: 44, small_bytes: 1 << 20 };

    pub(crate) fn of(packing: Packing) -> Fill {
        match packing {
            Packing::Fast => Fill::FAST,
            Packing::Compact => Fill::COMPACT,
        }
    }
}
