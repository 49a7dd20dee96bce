package dialect

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFindUnread(t *testing.T) {
	type item struct {
		ID int `json:"id"`
	}
	type body struct {
		Name  string            `json:"name"`
		Items []item            `json:"items"`
		Tags  map[string]string `json:"tags"`
		Maybe *item             `json:"maybe,omitempty"`
	}
	for raw, want := range map[string][]string{
		`{}`:                                    nil,
		`{"name":"","items":null,"other":null}`: nil,
		`{"name":"a","tags":{"any":"key"}}`:     nil,
		`{"size":3}`:                            {"size"},
		`{"items":[{"id":1,"x":1},{"x":2}]}`:    {"items.x"},
		`{"maybe":{"id":1,"deep":{"er":true}}}`: {"maybe.deep"},
		`{"NAME":"b"}`:                          {"NAME"},
	} {
		c := Handle("POST", "/", nil, func(_ context.Context, _ *Request, _ body) (*Answer, error) { return nil, nil })
		_, unread, err := c.decode([]byte(raw))
		require.NoError(t, err, raw)
		assert.Equal(t, want, unread, raw)
	}
}
