//! The little of XML that the protocol needs.

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// The texts of all elements of this name.
pub(super) fn texts(document: &str, name: &str) -> Vec<String> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let parts = document.split(&begin).skip(1);
    parts.filter_map(|rest| rest.split_once(&end).map(|(text, _)| unescaped(text))).collect()
}
