//! Aligned columns: the first to the left, the others to the right, two spaces between them. Knows nothing of
//! their content.

/// Lines of cells, of which the first is a heading.
pub(super) struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    /// With a heading; a heading whose cells are all empty is left out.
    pub(super) fn new(heading: &[&str]) -> Table {
        Table { lines: vec![heading.iter().copied().map(str::to_owned).collect()] }
    }

    /// Adds a line.
    ///
    /// # Panics
    /// When it has another number of cells.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.lines[0].len(), "a cell per column");
        self.lines.push(cells);
    }

    /// The text, every line with its end.
    pub(super) fn text(&self) -> String {
        let width = |at: usize| self.lines.iter().map(|cells| cells[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.lines[0].len()).map(width).collect();
        let mut text = String::new();
        for cells in self.lines.iter().filter(|cells| cells.iter().any(|cell| !cell.is_empty())) {
            let mut line = String::new();
            for (at, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
                line += &if at == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}
