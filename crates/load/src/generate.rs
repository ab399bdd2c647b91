//! What is asked for: keys, sizes and times of arrival, drawn from laws. Every number is a function of seed and cycle, not of
//! the thread that draws it. Knows no table and no script.
