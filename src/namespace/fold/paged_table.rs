//! PagedTable: a table of values with small numbers, which takes memory for what it holds now.
//!
//! A vector would keep the memory of the most values that it ever held: the contents of a few names
//! that are rewritten again and again come and go by the million. Here a page that becomes empty is
//! freed, and new values fill the lowest pages first. Must never move a value, because others hold
//! its number.

use std::collections::BTreeSet;

/// How many values one page has.
const PAGE: usize = 256;

/// Values by number.
#[derive(Debug)]
pub(super) struct PagedTable<T> {
    /// The last page is not empty.
    pages: Vec<Option<TablePage<T>>>,
    /// The pages with room for one more value, freed ones included.
    open: BTreeSet<u32>,
}

#[derive(Debug)]
struct TablePage<T> {
    values: Vec<Option<T>>,
    /// The places of `values` that are empty.
    free: Vec<u8>,
}

impl<T> TablePage<T> {
    fn is_full(&self) -> bool {
        self.free.is_empty() && self.values.len() == PAGE
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.values.len()
    }
}

impl<T> Default for PagedTable<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), open: BTreeSet::new() }
    }
}

impl<T> PagedTable<T> {
    /// Counts the values.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pages.iter().flatten().map(|page| page.values.len() - page.free.len()).sum()
    }

    /// Counts the values for which memory is taken.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pages.iter().flatten().map(|page| page.values.capacity()).sum()
    }

    /// Returns the value with a number that is in use.
    pub(super) fn get(&self, number: u32) -> &T {
        let (page, at) = place(number);
        let page = self.pages[page].as_ref().expect("the page of a number in use is not empty");
        page.values[at].as_ref().expect("a number in use has a value")
    }

    /// As [`PagedTable::get`], to change the value.
    pub(super) fn get_mut(&mut self, number: u32) -> &mut T {
        let (page, at) = place(number);
        let page = self.pages[page].as_mut().expect("the page of a number in use is not empty");
        page.values[at].as_mut().expect("a number in use has a value")
    }

    /// Adds a value; returns its number.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let at = self.open.first().map_or(self.pages.len(), |page| *page as usize);
        if at == self.pages.len() {
            self.pages.push(None);
        }
        let page = self.pages[at]
            .get_or_insert_with(|| TablePage { values: Vec::new(), free: Vec::new() });
        let place = if let Some(place) = page.free.pop() {
            page.values[usize::from(place)] = Some(value);
            usize::from(place)
        } else {
            page.values.push(Some(value));
            page.values.len() - 1
        };
        let open = u32::try_from(at).expect("fewer than 2^32 values fit in memory");
        if page.is_full() {
            self.open.remove(&open);
        } else {
            self.open.insert(open);
        }
        u32::try_from(at * PAGE + place).expect("fewer than 2^32 values fit in memory")
    }

    /// Removes the value with a number that is in use. The number may be given to another value.
    pub(super) fn remove(&mut self, number: u32) {
        let (at, place) = place(number);
        let page = self.pages[at].as_mut().expect("the page of a number in use is not empty");
        page.values[place].take().expect("a number in use has a value");
        page.free.push(place as u8);
        self.open.insert(at as u32);
        if page.is_empty() {
            self.pages[at] = None;
            self.drop_last();
        }
    }

    /// Frees the numbers after the last value.
    fn drop_last(&mut self) {
        while let Some(None) = self.pages.last() {
            self.pages.pop();
            self.open.remove(&(self.pages.len() as u32));
        }
        if self.pages.len() < self.pages.capacity() / 4 {
            self.pages.shrink_to(self.pages.len() * 2);
        }
    }

    /// Yields the values from number `first` on, each with its number.
    pub(super) fn starting_at(&self, first: u32) -> impl Iterator<Item = (u32, &T)> {
        let (page, at) = place(first);
        let pages = self.pages.iter().enumerate().skip(page);
        pages.flat_map(move |(number, one)| {
            let skipped = if number == page { at } else { 0 };
            let values = one.iter().flat_map(|page| page.values.iter().enumerate());
            values.skip(skipped).filter_map(move |(place, value)| {
                Some(((number * PAGE + place) as u32, value.as_ref()?))
            })
        })
    }
}

/// Returns the page of a number, and its place there.
fn place(number: u32) -> (usize, usize) {
    (number as usize / PAGE, number as usize % PAGE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn memory_follows_what_is_held_now() {
        let mut pages = PagedTable::default();
        let mut all: Vec<u32> = (0..100_000).map(|n| pages.insert(n)).collect();
        let last = all.split_off(all.len() - 100);
        for number in all {
            pages.remove(number);
        }
        assert_eq!(pages.len(), 100);
        assert!(pages.capacity() <= 2 * PAGE, "{} values", pages.capacity());
        assert!(last.iter().zip(99_900..).all(|(number, value)| *pages.get(*number) == value));
        assert_eq!(pages.insert(7), 0, "the lowest page is filled first");
        for number in last {
            pages.remove(number);
        }
        assert!(pages.pages.len() == 1 && pages.open.len() == 1);
    }

    proptest! {
        /// A table gives back what was put into it, and takes memory only for pages in use.
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((any::<bool>(), any::<u16>()), 1..2000)) {
            let (mut pages, mut model) = (PagedTable::default(), std::collections::BTreeMap::new());
            for (add, value) in steps {
                if add || model.is_empty() {
                    prop_assert_eq!(model.insert(pages.insert(value), value), None);
                } else {
                    let at = usize::from(value) % model.len();
                    let number = *model.keys().nth(at).expect("it is smaller than the length");
                    model.remove(&number);
                    pages.remove(number);
                }
                prop_assert_eq!(pages.len(), model.len());
            }
            let from = model.keys().nth(model.len() / 2).copied().unwrap_or(0);
            let all: Vec<(u32, u16)> = pages.starting_at(from).map(|(n, value)| (n, *value)).collect();
            let want: Vec<(u32, u16)> = model.range(from..).map(|(n, value)| (*n, *value)).collect();
            prop_assert_eq!(all, want);
        }
    }
}
