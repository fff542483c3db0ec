//! OpenAI's Responses API: requests (`request`, `input`, `options`, `tools`), which `conversation` turns into messages
//! for the chat template, and responses (`response`, `item`, `events`), which `builder` makes of the output and
//! `writer` sends. `store` keeps responses for later requests.

mod builder;
mod conversation;
mod events;
mod handlers;
mod input;
mod item;
mod options;
mod request;
mod response;
mod store;
mod tools;
mod writer;

pub(crate) use events::StreamEvent;
pub(crate) use handlers::{cancel, create, delete, input_items, retrieve};
pub(crate) use request::CreateResponse;
pub(crate) use response::{DeletedResponse, ItemList, ResponseObject};
pub(crate) use store::{Owner, ResponseStore};
