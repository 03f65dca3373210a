//! Replies that are too large for one turn: tables and metrics.

use std::time::Duration;

use vhca_control::protocol::VERSION;

use super::scene;
use crate::serve::lab::Lab;
use crate::show::{Metrics, Page};
use vhca::Slice;

/// How long one turn of all replies together may take, before guests and programs have theirs.
pub(super) const SLICE: Duration = Duration::from_micros(200);

/// A reply on its way: each turn makes a piece, once the client has taken the one before.
#[derive(Debug)]
pub(super) struct Reply {
    content: Content,
    wrapping: Wrapping,
    is_begun: bool,
}

#[derive(Debug)]
enum Content {
    Tables(Page),
    Metrics(Box<Metrics>),
}

/// What is around the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrapping {
    /// A reply with JSON in it.
    Json,
    /// A reply with text in it.
    Text,
    /// A response of HTTP/1.1 in chunks.
    Http,
}

impl Reply {
    pub(super) const fn tables(page: Page) -> Self {
        Self::new(Content::Tables(page), Wrapping::Json)
    }

    pub(super) fn metrics(metrics: Metrics) -> Self {
        Self::new(Content::Metrics(Box::new(metrics)), Wrapping::Text)
    }

    pub(super) fn http(metrics: Metrics) -> Self {
        Self::new(Content::Metrics(Box::new(metrics)), Wrapping::Http)
    }

    const fn new(content: Content, wrapping: Wrapping) -> Self {
        Self {
            content,
            wrapping,
            is_begun: false,
        }
    }

    /// Returns true if the connection ends behind it.
    pub(super) fn is_last(&self) -> bool {
        self.wrapping == Wrapping::Http
    }

    /// Appends what comes next, until the slice is over. Returns true if that was all.
    pub(super) fn write(&mut self, lab: &Lab, out: &mut Vec<u8>, slice: &mut Slice) -> bool {
        let pfs = scene::pfs(lab);
        let service = lab.service_facts();
        let scene = scene::scene(lab, &pfs, &service);
        let mut piece = Vec::new();
        let is_over = match &mut self.content {
            Content::Tables(page) => page.write(&scene, &mut piece, slice),
            Content::Metrics(metrics) => metrics.write(&scene, &mut piece, slice),
        };
        if !core::mem::replace(&mut self.is_begun, true) {
            self.begin(out);
        }
        self.wrap(out, &piece);
        if is_over {
            self.end(out);
        }
        is_over
    }

    fn begin(&self, out: &mut Vec<u8>) {
        let head = match self.wrapping {
            Wrapping::Json => format!("{{\"v\":{VERSION},\"ok\":"),
            Wrapping::Text => format!("{{\"v\":{VERSION},\"ok\":{{\"text\":\""),
            Wrapping::Http => "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
                               Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
                .to_owned(),
        };
        out.extend_from_slice(head.as_bytes());
    }

    /// Appends a piece of the content, which has whole lines.
    fn wrap(&self, out: &mut Vec<u8>, piece: &[u8]) {
        match self.wrapping {
            // A chunk of no bytes would be the last one.
            _ if piece.is_empty() => {}
            Wrapping::Json => out.extend_from_slice(piece),
            Wrapping::Text => {
                let text = serde_json::Value::from(String::from_utf8_lossy(piece)).to_string();
                let quoted = text
                    .strip_prefix('"')
                    .and_then(|text| text.strip_suffix('"'));
                out.extend_from_slice(quoted.unwrap_or_default().as_bytes());
            }
            Wrapping::Http => {
                out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self.wrapping {
            Wrapping::Json => b"}\n",
            Wrapping::Text => b"\"}}\n",
            Wrapping::Http => b"0\r\n\r\n",
        });
    }
}

/// Returns the metrics of all hosts and nodes.
#[cfg(test)]
pub(in crate::serve) fn metrics_text(lab: &Lab) -> String {
    let mut metrics = Metrics::new(vhca_control::By::Host, crate::show::Filter::default());
    let (pfs, service) = (scene::pfs(lab), lab.service_facts());
    let scene = scene::scene(lab, &pfs, &service);
    let mut out = Vec::new();
    while !metrics.write(&scene, &mut out, &mut Slice::endless()) {}
    String::from_utf8(out).unwrap()
}
