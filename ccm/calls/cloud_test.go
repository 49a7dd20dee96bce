package calls_test

import (
	"context"
	"io"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cli"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

var readyLine = regexp.MustCompile(`fakecloud is ready at (http://\S+);`)

// startCloud runs a cloud until the test ends.
func startCloud(t *testing.T, args ...string) (url, token string) {
	t.Helper()
	token = filepath.Join(t.TempDir(), "token")
	ctx, cancel := context.WithCancel(context.Background())
	said, stderr := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		code := cli.Run(ctx, append([]string{
			"serve", "--listen", "127.0.0.1:0", "--data", ":memory:", "--token", "operator:admin=" + token,
			"--load-balancer-mode", "none", "--log-level", "error",
		}, args...), io.Discard, stderr)
		_ = stderr.Close()
		assert.Zero(t, code)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	var text []byte
	for buf := make([]byte, 4096); ; {
		n, err := said.Read(buf)
		text = append(text, buf[:n]...)
		if m := readyLine.FindSubmatch(text); m != nil {
			go func() { _, _ = io.Copy(io.Discard, said) }()
			return string(m[1]), token
		}
		require.NoError(t, err, "the cloud said: %s", text)
	}
}

func connect(t *testing.T, url, token string, wrap bool) *client.Client {
	t.Helper()
	cfg := client.Config{URL: url, TokenFile: token, Direct: true}
	if wrap {
		cfg.Wrap = calls.Wrap(calls.Options{})
	}
	c, err := client.New(cfg)
	require.NoError(t, err)
	return c
}

// A fault throttles one call for a minute: others are not sent meanwhile, and
// the cloud sees none of them.
func TestThrottleFault(t *testing.T) {
	url, token := startCloud(t)
	operator, ccm := connect(t, url, token, false), connect(t, url, token, true)
	fault, err := operator.CreateFault(t.Context(), api.FaultCreate{
		Match:  api.FaultMatch{Operations: []string{"getInstance"}},
		Effect: api.FaultEffect{Status: 429, RetryAfterSeconds: 60},
	})
	require.NoError(t, err)
	_, err = ccm.GetInstance(t.Context(), "i-1")
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, time.Minute, refused.RetryAfter)

	for range 10 {
		_, err = ccm.GetInstance(t.Context(), "i-1")
		require.True(t, client.HasCode(err, api.RateLimited), "%v", err)
		_, err = ccm.ListZones(t.Context())
		require.ErrorContains(t, err, "the cloud asked to stay away")
	}
	fault, err = operator.GetFault(t.Context(), fault.ID)
	require.NoError(t, err)
	assert.EqualValues(t, 1, fault.Hits)
}

// Over the cloud's own rate limit, reads succeed after the second that it asks for.
func TestRateLimit(t *testing.T) {
	url, token := startCloud(t, "--rate-limit", "1", "--rate-burst", "2")
	ccm := connect(t, url, token, true)
	for range 3 {
		_, err := ccm.ListZones(t.Context())
		require.NoError(t, err)
	}
}
