//! Compiled grammars for constrained output.
//!
//! Compilation never runs on the threads of the async runtime. The compiler's tables for the vocabulary are
//! built once, in a second or two for a large one, by a background thread that starts with the server; requests that
//! need them earlier wait.
//! Each grammar is compiled on its own thread, a limited number at a time, and the most recently used are cached.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grammar::{Grammar, GrammarCompiler, Matcher};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::config::{Config, Model};
use crate::constraint::{Constraint, ConstraintKind};
use crate::error::Error;

/// Number of cached grammars: more than the schemas of a few local applications.
const CACHE_SIZE: usize = 32;

/// The model's grammar compiler, or the error from building it.
type CompilerResult = Result<GrammarCompiler, String>;

/// Compiles and caches grammars of the served model.
pub(crate) struct GrammarCache {
    compiler: watch::Receiver<Option<CompilerResult>>,
    /// One permit per compilation, held until it ends, even after its timeout.
    workers: Arc<Semaphore>,
    cache: Arc<Mutex<LruCache>>,
    timeout: Duration,
}

impl GrammarCache {
    /// Starts building the compiler in the background.
    pub(crate) fn start(model: &Model, config: &Config) -> std::io::Result<GrammarCache> {
        let (sender, compiler) = watch::channel(None);
        let (tokenizer, vocab_size) = (model.tokenizer.clone(), model.vocab_size);
        let stop_token_ids = model.stop_token_ids.clone();
        let build = move || {
            let built = GrammarCompiler::new(&tokenizer, vocab_size, &stop_token_ids);
            let built = built.map_err(|error| error.to_string());
            if let Err(error) = &built {
                tracing::warn!("constrained output is not available: {error}");
            }
            // Fails if the server has stopped meanwhile.
            let _ = sender.send(Some(built));
        };
        std::thread::Builder::new().name("grammars".into()).spawn(build)?;
        let workers = Arc::new(Semaphore::new(config.grammar_workers));
        Ok(GrammarCache { compiler, workers, cache: Arc::default(), timeout: config.grammar_timeout })
    }

    /// Matchers of a constraint's grammar, one for each of `count` choices.
    pub(crate) async fn matchers(&self, constraint: Constraint, count: usize) -> Result<Vec<Matcher>, Error> {
        let compiler = self.compiler(constraint.top_field()).await?;
        let Constraint { field, kind } = constraint;
        let key = match &kind {
            ConstraintKind::JsonObject => String::new(),
            ConstraintKind::JsonSchema(schema) => schema.to_string(),
            ConstraintKind::ToolCalls { grammar, .. } => format!("{grammar:?}"),
            kind => format!("{kind:?}"),
        };
        let cached = |cache: &Mutex<LruCache>| cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key);
        if let Some(grammar) = cached(&self.cache) {
            return self.new_matchers(field, grammar, count).await;
        }
        let permit = tokio::time::timeout(self.timeout, self.workers.clone().acquire_owned()).await;
        let permit =
            permit.map_err(|_| Error::QueueFull(self.timeout))?.expect("the semaphore is never closed");
        // Another request may have compiled it while this one waited.
        if let Some(grammar) = cached(&self.cache) {
            return self.new_matchers(field, grammar, count).await;
        }
        let cache = self.cache.clone();
        let compile = move || {
            let _permit = permit;
            let grammar = match &kind {
                ConstraintKind::JsonObject => compiler.json_object(),
                ConstraintKind::JsonSchema(schema) => compiler.json_schema(schema),
                ConstraintKind::Regex(regex) => compiler.regex(regex),
                ConstraintKind::Choice(choices) => compiler.choice(choices),
                ConstraintKind::Grammar(grammar) => compiler.grammar(grammar),
                ConstraintKind::ToolCalls { grammar, .. } => compiler.tool_calls(grammar),
            };
            let grammar = Arc::new(grammar.map_err(|error| match (error, &kind) {
                (grammar::Error::Tool { index, reason }, ConstraintKind::ToolCalls { schema_field, .. }) => {
                    let field = format!("tools[{index}].{schema_field}");
                    Error::invalid_field(field, format!("cannot be used: {reason}"))
                }
                (
                    error @ grammar::Error::Invalid { subject: grammar::SCHEMA, .. },
                    ConstraintKind::ToolCalls { format_field, .. },
                ) => Error::invalid_field(*format_field, error),
                (error, _) => Error::invalid_field(field, error),
            })?);
            cache.lock().unwrap_or_else(PoisonError::into_inner).insert(key, grammar.clone());
            Ok((0..count).map(|_| grammar.matcher()).collect())
        };
        self.run(field, compile).await
    }

    /// The compiler, as soon as it is built.
    async fn compiler(&self, field: &str) -> Result<GrammarCompiler, Error> {
        let mut compiler = self.compiler.clone();
        let compiler = compiler.wait_for(Option::is_some).await.ok().and_then(|built| built.clone());
        match compiler {
            Some(Ok(compiler)) => Ok(compiler),
            Some(Err(reason)) => Err(Error::unsupported(field, format!("constrained output ({reason})"))),
            None => Err(Error::Internal),
        }
    }

    async fn new_matchers(
        &self,
        field: &'static str,
        grammar: Arc<Grammar>,
        count: usize,
    ) -> Result<Vec<Matcher>, Error> {
        self.run(field, move || Ok((0..count).map(|_| grammar.matcher()).collect())).await
    }

    /// Runs `work` on a thread of its own. The thread cannot be cancelled: after the timeout it keeps running, and
    /// keeps the permit that `work` holds.
    async fn run<T: Send + 'static>(
        &self,
        field: &'static str,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, result) = oneshot::channel();
        let run = move || {
            // Fails if the request has timed out or its client has disconnected.
            let _ = sender.send(work());
        };
        std::thread::Builder::new().name("grammar".into()).spawn(run).map_err(|error| {
            tracing::error!(%error, "cannot start a thread to compile a grammar");
            Error::Internal
        })?;
        match tokio::time::timeout(self.timeout, result).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Error::Internal),
            Err(_) => {
                let seconds = self.timeout.as_secs_f64();
                let message = format!("is too complex: its grammar was not compiled within {seconds} s");
                Err(Error::invalid_field(field, message))
            }
        }
    }
}

/// Grammars by the text of their constraints, the most recently used last.
#[derive(Default)]
struct LruCache(VecDeque<(String, Arc<Grammar>)>);

impl LruCache {
    fn get(&mut self, key: &str) -> Option<Arc<Grammar>> {
        let index = self.0.iter().position(|(cached, _)| cached == key)?;
        let entry = self.0.remove(index)?;
        let grammar = entry.1.clone();
        self.0.push_back(entry);
        Some(grammar)
    }

    fn insert(&mut self, key: String, grammar: Arc<Grammar>) {
        if self.get(&key).is_none() {
            self.0.push_back((key, grammar));
        }
        if self.0.len() > CACHE_SIZE {
            self.0.pop_front();
        }
    }
}
