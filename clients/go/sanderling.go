// Package sanderling reads rows of tables and predictions from `sanderling serve` over HTTP. It needs the standard
// library only.
package sanderling

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
)

const octets = "application/octet-stream"

// Client asks one server. It may be used by several goroutines at once.
type Client struct {
	// URL of the server, such as http://127.0.0.1:8500.
	URL string
	// Token of a server that has one.
	Token string
	// HTTP is the client to use; nil means http.DefaultClient.
	HTTP *http.Client
}

// Options of a request. The zero value asks the only model, in its latest version, for one row per key.
type Options struct {
	Model, Version string
	// Feature whose values are given, where several read the table.
	Feature string
	// Pooling is sum or mean; empty means one row per key.
	Pooling string
	// Lengths is the number of keys or values of each pooled row; nil pools all into one row.
	Lengths []int
}

// Rows of a table, one per key, or pooled.
type Rows struct {
	// Version of the model that answered.
	Version uint64
	Dim     int
	// Weights has Dim numbers for each row; those of an absent row are 0.
	Weights []float32
	// Absent has the places of the keys or values without a row, ascending.
	Absent []uint32
}

// Len returns the number of rows.
func (r *Rows) Len() int { return len(r.Weights) / r.Dim }

// Row returns the weights of a row.
func (r *Rows) Row(at int) []float32 { return r.Weights[at*r.Dim : (at+1)*r.Dim] }

// Error is a refusal of the server.
type Error struct {
	// Status is the HTTP status: 503 and 504 may be tried again.
	Status int
	Text   string
}

func (e *Error) Error() string { return fmt.Sprintf("sanderling: %s (%d)", e.Text, e.Status) }

// RowsOfKeys looks rows up by key.
func (c *Client) RowsOfKeys(ctx context.Context, table string, keys []uint64, options Options) (*Rows, error) {
	body := make([]byte, 0, 8*len(keys))
	for _, key := range keys {
		body = binary.LittleEndian.AppendUint64(body, key)
	}
	return c.rows(ctx, table, "keys", body, options)
}

// RowsOfValues looks rows up by the text of a feature, which becomes the key as in training.
func (c *Client) RowsOfValues(ctx context.Context, table string, values []string, options Options) (*Rows, error) {
	var body []byte
	for _, value := range values {
		body = binary.LittleEndian.AppendUint32(body, uint32(len(value)))
		body = append(body, value...)
	}
	return c.rows(ctx, table, "values", body, options)
}

// Predict scores rows, such as []map[string]any{{"user": "u17", "genres": []string{"a", "b"}}}; a row of a model of
// libsvm or libffm lines is a string.
func (c *Client) Predict(ctx context.Context, rows any, options Options) ([]float32, error) {
	body, err := json.Marshal(map[string]any{"rows": rows, "model": options.Model, "version": options.Version})
	if err != nil {
		return nil, err
	}
	reply, err := c.post(ctx, "/predict", "application/json", body)
	if err != nil {
		return nil, err
	}
	var scores struct{ Scores []float32 }
	err = json.Unmarshal(reply, &scores)
	return scores.Scores, err
}

func (c *Client) rows(ctx context.Context, table, input string, body []byte, options Options) (*Rows, error) {
	query := url.Values{"input": {input}}
	for name, value := range map[string]string{
		"model": options.Model, "version": options.Version, "feature": options.Feature, "pooling": options.Pooling,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if options.Lengths != nil {
		query.Set("lengths", strings.Trim(strings.ReplaceAll(fmt.Sprint(options.Lengths), " ", ","), "[]"))
	}
	reply, err := c.post(ctx, "/tables/"+url.PathEscape(table)+"/rows?"+query.Encode(), octets, body)
	if err != nil {
		return nil, err
	}
	return parse(reply)
}

func (c *Client) post(ctx context.Context, path, kind string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", kind)
	request.Header.Set("Accept", kind)
	if c.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.Token)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	reply, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		refusal := struct{ Error string }{string(reply)}
		_ = json.Unmarshal(reply, &refusal)
		return nil, &Error{response.StatusCode, refusal.Error}
	}
	return reply, err
}

// parse reads the bytes of an answer; docs/serving.md has their layout.
func parse(bytes []byte) (*Rows, error) {
	const head = 28
	if len(bytes) < head || string(bytes[:4]) != "SROW" {
		return nil, errors.New("sanderling: the answer has no rows; is the address that of sanderling serve?")
	}
	number := func(at uint64) uint64 { return uint64(binary.LittleEndian.Uint32(bytes[at:])) }
	rows, dim, absent := number(8), number(12), number(24)
	if number(4) != 0 || dim == 0 || uint64(len(bytes)) != head+4*absent+4*rows*dim {
		return nil, errors.New("sanderling: the answer has an unexpected layout")
	}
	found := &Rows{Version: binary.LittleEndian.Uint64(bytes[16:]), Dim: int(dim)}
	found.Absent, found.Weights = make([]uint32, absent), make([]float32, rows*dim)
	for at := range found.Absent {
		found.Absent[at] = uint32(number(head + 4*uint64(at)))
	}
	for at := range found.Weights {
		found.Weights[at] = math.Float32frombits(uint32(number(head + 4*absent + 4*uint64(at))))
	}
	return found, nil
}
