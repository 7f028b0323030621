//! A small XML document, with the position of every element in its text.
//!
//! Owns parsing it, and cutting and inserting pieces. Must never serialize again what it has
//! parsed: what belongs to others stays the same, byte for byte.

use std::ops::Range;

use quick_xml::Reader;
use quick_xml::escape::{resolve_xml_entity, unescape};
use quick_xml::events::{BytesStart, Event};

/// How deep elements may be nested.
const DEPTH_MAX: usize = 16;
/// How many elements a document may have: a bucket has a thousand rules at most.
const ELEMENTS_MAX: usize = 100_000;

/// An element with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Element {
    /// Its name, without the namespace prefix.
    pub(super) name: String,
    /// Its namespace prefix with the colon, or nothing.
    pub(super) prefix: String,
    /// The text directly in it, trimmed.
    pub(super) text: String,
    pub(super) children: Vec<Element>,
    /// Its range in the text of the document.
    pub(super) range: Range<usize>,
    /// The range between its tags; `None` for a self-closing tag.
    inner: Option<Range<usize>>,
}

impl Element {
    /// Returns the first child of that name.
    pub(super) fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Returns the text of the first child of that name.
    pub(super) fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| child.text.as_str())
    }

    /// Writes its content in a canonical form, independent of white space, comments and quoting.
    pub(super) fn canonical(&self) -> String {
        let children: String = self.children.iter().map(Element::canonical).collect();
        format!("<{}>{:?}{children}</>", self.name, self.text)
    }
}

/// Parses a document; the error describes what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Element, String> {
    // The reader skips a byte order mark and does not count it.
    let mark = text.len() - text.trim_start_matches('\u{feff}').len();
    let mut reader = Reader::from_str(&text[mark..]);
    let (mut open, mut root, mut count) = (Vec::<Element>::new(), None, 0);
    loop {
        let start = mark + reader.buffer_position() as usize;
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let end = mark + reader.buffer_position() as usize;
        match event {
            Event::Start(tag) => {
                count += 1;
                if open.len() >= DEPTH_MAX || count > ELEMENTS_MAX || root.is_some() {
                    return Err("it has too many elements, or more than one root".to_owned());
                }
                open.push(element(&tag, start..end, Some(end..end))?);
            }
            Event::Empty(tag) => {
                count += 1;
                if count > ELEMENTS_MAX || root.is_some() {
                    return Err("it has too many elements, or more than one root".to_owned());
                }
                place(element(&tag, start..end, None)?, &mut open, &mut root);
            }
            Event::End(_) => {
                // The reader has checked that the names match.
                let mut done = open.pop().ok_or("an end without a start")?;
                done.range.end = end;
                done.inner = done.inner.map(|inner| inner.start..start);
                let text = done.text.trim().to_owned();
                done.text = text;
                place(done, &mut open, &mut root);
            }
            Event::Text(piece) => add_text(&mut open, &piece.decode().map_err(said)?)?,
            Event::CData(piece) => add_text(&mut open, &piece.decode().map_err(said)?)?,
            Event::GeneralRef(name) => {
                let name = name.decode().map_err(said)?;
                let text = match resolve_xml_entity(&name) {
                    Some(text) => text.to_owned(),
                    None => unescape(&format!("&{name};")).map_err(said)?.into_owned(),
                };
                add_text(&mut open, &text)?;
            }
            // It could define entities, and no store sends one.
            Event::DocType(_) => return Err("it has a document type".to_owned()),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof if open.is_empty() => return root.ok_or("it holds nothing".to_owned()),
            Event::Eof => return Err("it ends too early".to_owned()),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is what `map_err` passes")]
fn said(error: impl ToString) -> String {
    error.to_string()
}

fn element(
    tag: &BytesStart<'_>,
    range: Range<usize>,
    inner: Option<Range<usize>>,
) -> Result<Element, String> {
    let whole = tag.name();
    let (local, prefix) = whole.decompose();
    let text = |bytes: &[u8]| str::from_utf8(bytes).map(str::to_owned).map_err(said);
    let prefix = match prefix {
        Some(prefix) => format!("{}:", text(prefix.as_ref())?),
        None => String::new(),
    };
    let name = text(local.as_ref())?;
    Ok(Element { name, prefix, text: String::new(), children: Vec::new(), range, inner })
}

fn place(done: Element, open: &mut [Element], root: &mut Option<Element>) {
    match open.last_mut() {
        Some(parent) => parent.children.push(done),
        None => *root = Some(done),
    }
}

fn add_text(open: &mut [Element], text: &str) -> Result<(), String> {
    match open.last_mut() {
        Some(parent) => parent.text.push_str(text),
        None if text.trim().is_empty() => {}
        None => return Err("it has text outside of its root".to_owned()),
    }
    Ok(())
}

/// Inserts `new` into the root of a document in place of the children at `gone`: at the place of
/// the first of them, or else behind everything. All other bytes stay.
pub(super) fn splice(text: &str, root: &Element, gone: &[Range<usize>], new: &str) -> String {
    let Some(inner) = &root.inner else {
        let tag = text[root.range.clone()].trim_end_matches('>').trim_end_matches('/');
        let name = format!("{}{}", root.prefix, root.name);
        let (before, after) = (&text[..root.range.start], &text[root.range.end..]);
        return format!("{before}{tag}>{new}</{name}>{after}");
    };
    let mut out = String::with_capacity(text.len() + new.len());
    let mut done = 0;
    for (index, range) in gone.iter().enumerate() {
        out.push_str(&text[done..range.start]);
        if index == 0 {
            out.push_str(new);
        }
        done = range.end;
    }
    if gone.is_empty() {
        out.push_str(&text[..inner.end]);
        out.push_str(new);
        done = inner.end;
    }
    out.push_str(&text[done..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_with_the_places_of_its_pieces() {
        let text = "\u{feff}<?xml version=\"1.0\"?>\n<!-- of us -->\n<L xmlns=\"urn:x\">\n  <R a='1'>\n\
                    <ID> a &amp; <![CDATA[<b>]]>&#x41; </ID><?pi?><E/></R >\n  <s:R xmlns:s='u'/> <!-- <R> --></L>\n";
        let root = parse(text).expect("good");
        assert_eq!((root.name.as_str(), root.children.len()), ("L", 2));
        let first = &root.children[0];
        assert!(text[first.range.clone()].starts_with("<R a='1'>"));
        assert!(text[first.range.clone()].ends_with("</R >"));
        assert_eq!(first.text_of("ID"), Some("a & <b>A"));
        assert_eq!(first.text_of("E"), Some(""));
        assert_eq!(first.text_of("X"), None);
        assert_eq!(&text[root.children[1].range.clone()], "<s:R xmlns:s='u'/>");
        assert_eq!(root.children[1].prefix, "s:");
        assert_eq!(&text[root.range.clone()], text[text.find("<L").unwrap()..].trim_end());
    }

    #[test]
    fn what_is_no_such_document_is_refused() {
        let deep = "<a>".repeat(DEPTH_MAX + 1);
        for (text, says) in [
            ("", "holds nothing"),
            ("just text", "outside"),
            ("<a>", "too early"),
            ("<a></b>", "b"),
            ("</a>", ""),
            ("<a/><b/>", "more than one root"),
            ("<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>", "document type"),
            ("<a>&nothing;</a>", "nothing"),
            (deep.as_str(), "too many"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn splicing_leaves_all_other_bytes() {
        for (text, gone, after) in [
            ("<L/>", "", "<L>NEW</L>"),
            ("<?xml?><s:L a='>' />\n", "", "<?xml?><s:L a='>' >NEW</s:L>\n"),
            ("<L></L>", "", "<L>NEW</L>"),
            ("<L> <a/>\n</L>\n", "", "<L> <a/>\nNEW</L>\n"),
            (
                "<L> <x/>\t<a> </a><x>1</x> <b/><!--x--></L>",
                "x",
                "<L> NEW\t<a> </a> <b/><!--x--></L>",
            ),
        ] {
            let root = parse(text).expect(text);
            let gone: Vec<_> =
                root.children.iter().filter(|c| c.name == gone).map(|c| c.range.clone()).collect();
            assert_eq!(splice(text, &root, &gone, "NEW"), after);
        }
    }
}
