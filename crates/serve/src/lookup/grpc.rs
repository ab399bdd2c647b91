//! The gRPC service of rows: several tables per request, weights as bytes.

use std::sync::Arc;

use sanderling_sample::Field;
use sanderling_store::Pooling;
use tonic::{Request, Response, Status};

use crate::catalog::Models;
use crate::error::ServeError;
use crate::limit::LOOKUP_TABLES_MAX;
use crate::lookup::{Groups, Items, bytes_of, find};
use crate::lookup_proto as proto;
use crate::models::ServedModel;
use crate::service::Service;
use crate::slow::Stage;
use crate::work::{Asked, status};

/// The service of a server.
pub(crate) struct LookupService(pub(crate) Arc<Service>);

#[tonic::async_trait]
impl proto::lookup_server::Lookup for LookupService {
    async fn rows(&self, request: Request<proto::RowsRequest>) -> Result<Response<proto::RowsReply>, Status> {
        let asked = request.extensions().get::<Asked>().cloned().unwrap_or_default();
        let (models, request) = (self.0.models.current(), request.into_inner());
        let noted = asked.clone();
        let done = self.0.threads.run(noted.queued(move || answer(&models, &asked, request))).await;
        done.map(Response::new).map_err(|error| status(&error))
    }
}

/// Answers `Rows`.
fn answer(
    models: &Models,
    asked: &Asked,
    request: proto::RowsRequest,
) -> Result<proto::RowsReply, ServeError> {
    let model = models.find(&request.model, &request.version)?;
    asked.of(&model);
    if request.tables.len() > LOOKUP_TABLES_MAX {
        return Err(ServeError::too_many(request.tables.len(), "tables", LOOKUP_TABLES_MAX));
    }
    let is_half = request.dtype() == proto::Dtype::F16;
    // Keys and pooled rows so far, of all tables.
    let mut counted = 0;
    let tables = request.tables.into_iter().map(|keys| rows(&model, asked, keys, is_half, &mut counted));
    let tables = tables.collect::<Result<_, _>>()?;
    Ok(proto::RowsReply { model: model.name.clone(), version: model.version, tables })
}

/// The rows of one table.
fn rows(
    model: &ServedModel,
    asked: &Asked,
    mut wanted: proto::Keys,
    is_half: bool,
    counted: &mut usize,
) -> Result<proto::Rows, ServeError> {
    let found_in = model.table(&wanted.table)?;
    asked.check_keys(*counted + wanted.keys.len() + wanted.values.len())?;
    if !wanted.keys.is_empty() && !wanted.values.is_empty() {
        let text = "has keys and values; name the table twice to ask for both";
        return Err(ServeError::invalid(format!("table {:?}: {text}", wanted.table)));
    }
    let mut items = Items::from(std::mem::take(&mut wanted.keys));
    if !wanted.values.is_empty() {
        let values = wanted.values.iter().map(|value| Field::Text(value));
        items.add_values(model, &wanted.table, &wanted.feature, values)?;
    }
    let groups = groups(&wanted, items.len())?;
    *counted += items.keys().len().max(groups.as_ref().map_or(0, Groups::len));
    asked.check_keys(*counted)?;
    let found = asked.times.timed(Stage::Rows, || find(found_in, &items, groups.as_ref()))?;
    asked.count_rows(items.keys().len());
    Ok(proto::Rows {
        dim: found.dim as u32,
        rows: found.len() as u32,
        weights: bytes_of(found.weights, is_half),
        absent: found.absent,
    })
}

fn groups(wanted: &proto::Keys, items: usize) -> Result<Option<Groups>, ServeError> {
    let (lengths, offsets) = (&*wanted.lengths, &*wanted.offsets);
    let pooling = match proto::Pooling::try_from(wanted.pooling) {
        Ok(proto::Pooling::None) if lengths.is_empty() && offsets.is_empty() => return Ok(None),
        Ok(proto::Pooling::None) => {
            return Err(ServeError::invalid("lengths or offsets without a pooling; give SUM or MEAN"));
        }
        Ok(proto::Pooling::Sum) => Pooling::Sum,
        Ok(proto::Pooling::Mean) => Pooling::Mean,
        Err(_) => return Err(ServeError::invalid("no such pooling; there are NONE, SUM and MEAN")),
    };
    match (lengths, offsets) {
        ([], []) => Ok(Some(Groups::one(pooling, items))),
        (lengths, []) => Groups::of_lengths(pooling, lengths, items).map(Some),
        ([], offsets) => Groups::of_offsets(pooling, offsets, items).map(Some),
        _ => Err(ServeError::invalid("lengths and offsets; give one of them")),
    }
}
