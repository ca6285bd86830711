"""One file per wire format: it parses the request body and writes the response, whole or streamed."""
