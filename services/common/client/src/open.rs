//! Opens a stream whose messages are decoded one by one: a message that cannot be read costs itself and nothing else.

use std::marker::PhantomData;
use std::pin::Pin;

use bytes::Buf as _;
use http::uri::PathAndQuery;
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::codegen::StdError;
use tonic::{Request, Status};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::failure::chain;
use crate::item::StreamItem;
use crate::message::{Incoming, MAX_MESSAGE_BYTES, MAX_STREAM_MESSAGE_BYTES, Unreadable};
use crate::wire::WatchResponse;

/// An open stream of items.
pub type ItemStream<I> =
    Pin<Box<dyn Stream<Item = Result<Incoming<<I as StreamItem>::Key, I>, Status>> + Send>>;

/// Opens the stream of a Watch RPC.
///
/// # Errors
/// The status of the server, or UNAVAILABLE when it cannot be reached.
pub async fn open<S, M>(service: S, request: M::Request) -> Result<ItemStream<M::Item>, Status>
where
    S: GrpcService<Body>,
    S::Error: Into<StdError>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
    M: WatchResponse + prost::Message + Default,
{
    let mut grpc = Grpc::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES);
    grpc.ready().await.map_err(|error| {
        let error: StdError = error.into();
        Status::unavailable(chain(&*error))
    })?;
    let path = PathAndQuery::from_static(M::PATH);
    let codec = ItemByItem::<M::Request, M>(PhantomData);
    let response = grpc.server_streaming(Request::new(request), path, codec).await?;
    let decode = |message: Result<Result<M, Unreadable>, Status>| {
        Ok(match message? {
            Ok(message) => decoded(message),
            Err(unreadable) => Incoming::Unreadable(unreadable),
        })
    };
    Ok(Box::pin(response.into_inner().map(decode)))
}

fn decoded<M: WatchResponse>(message: M) -> Incoming<<M::Item as StreamItem>::Key, M::Item> {
    match message.decode() {
        Ok(message) => Incoming::Message(message),
        Err(part) => Incoming::Unreadable(Unreadable::Malformed(format!("it has no {part}"))),
    }
}

/// Encodes requests as every client does; decodes each answer on its own, so that an error is an item of the stream
/// and not its end.
struct ItemByItem<Q, M>(PhantomData<(Q, M)>);

impl<Q, M> Codec for ItemByItem<Q, M>
where
    Q: prost::Message + Send + 'static,
    M: prost::Message + Default + Send + 'static,
{
    type Encode = Q;
    type Decode = Result<M, Unreadable>;
    type Encoder = ProstEncoder<Q>;
    type Decoder = ItemDecoder<M>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<Q, M>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        ItemDecoder(PhantomData)
    }
}

struct ItemDecoder<M>(PhantomData<M>);

impl<M: prost::Message + Default + Send + 'static> Decoder for ItemDecoder<M> {
    type Item = Result<M, Unreadable>;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let length = bytes.remaining();
        let decoded = if length > MAX_STREAM_MESSAGE_BYTES {
            Err(Unreadable::TooLarge(length))
        } else {
            M::decode(&mut *bytes).map_err(|error| Unreadable::Malformed(error.to_string()))
        };
        // Whatever was not read belongs to this message.
        bytes.advance(bytes.remaining());
        Ok(Some(decoded))
    }
}
