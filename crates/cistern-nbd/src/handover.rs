//! Connections that another server goes on with: one stops, the next one serves them, and their clients see no more than a pause
//! (`docs/design/attach.md`, "A stop hands its connections on").
//!
//! Invariant: such a connection is between two requests. What its client has sent of the next lies in the socket, and of those before
//! nothing is owed.

use std::os::unix::net::UnixStream;

use crate::{
    export::{Export, Exports},
    gate::Terms,
    handshake::Agreed,
};

/// A connection between two servers. Where this is dropped, it ends.
#[derive(Debug)]
pub struct HandedOn {
    /// The name of the export that it is to.
    pub export: String,
    /// What that said that it is, [`Export::identity`].
    pub identity: String,
    pub socket: UnixStream,
}

impl HandedOn {
    /// One that was to this export.
    pub(crate) fn of(export: &dyn Export, socket: UnixStream) -> Option<HandedOn> {
        Some(HandedOn { export: export.properties().name, identity: export.identity()?, socket })
    }

    /// What was agreed on it, where its export is still what it was.
    pub(crate) async fn agreed(&self, exports: &dyn Exports) -> Option<Agreed> {
        let export = exports.find(&self.export).await?;
        if export.identity().as_ref() != Some(&self.identity) {
            return None;
        }
        let terms = Terms::plain(&export.properties());
        Some(Agreed { export, terms, bitmaps: Vec::new(), outlives: true })
    }
}
