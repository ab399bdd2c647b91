//! The control plane of a parameter server: what an operator asks of it, over gRPC and plain HTTP, beside the data plane.
//! Knows neither frames nor tables' contents.
