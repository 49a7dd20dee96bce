package dialect

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestPage(t *testing.T) {
	all := []string{"a", "b", "c"}
	for _, c := range []struct {
		token string
		limit int
		page  []string
		next  string
	}{
		{"", 0, all, ""},
		{"", 3, all, ""},
		{"", 2, []string{"a", "b"}, "2"},
		{"2", 2, []string{"c"}, ""},
		{"3", 2, []string{}, ""},
		{"9", 2, []string{}, ""},
	} {
		page, next, err := Page(all, c.token, c.limit)
		require.NoError(t, err)
		assert.Equal(t, c.page, page, "%+v", c)
		assert.Equal(t, c.next, next, "%+v", c)
	}
	for _, token := range []string{"x", "-1"} {
		_, _, err := Page(all, token, 2)
		require.Error(t, err, token)
	}
}

func TestChange(t *testing.T) {
	raced := &client.Error{Problem: api.Problem{Code: api.ProblemCode(cloud.PreconditionFailed)}}
	for _, c := range []struct {
		err   error // of the attempts but the last one of these
		tries int
		want  error
	}{
		{nil, 1, nil}, {raced, 3, nil}, {errors.ErrUnsupported, 1, errors.ErrUnsupported}, {raced, attempts, raced},
	} {
		tries := 0
		last, err := Change(
			func() (int, error) { tries++; return tries, nil }, func(int) error { return nil },
			func(try int) error {
				if try == c.tries {
					return c.want
				}
				return c.err
			},
		)
		assert.Equal(t, c.want, err)
		assert.Equal(t, c.tries, tries)
		assert.Equal(t, c.tries, last)
	}
}

func TestCodeKind(t *testing.T) {
	k := CodeKind("server", api.ResourceInstance, "srv-")
	serial, err := k.Serial(k.Write(7))
	require.NoError(t, err)
	assert.Equal(t, int64(7), serial)
	for _, id := range []string{"", "srv-", "srv-7", "00007", "lba-00007", "srv-00000"} {
		_, err := k.Serial(id)
		assert.EqualError(t, err, k.NotFound(id).Error(), id)
	}
}
