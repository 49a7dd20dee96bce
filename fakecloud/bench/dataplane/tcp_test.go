package main

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

func TestExchangeOnce(t *testing.T) {
	_, c := directStage()
	require.NoError(t, exchangeOnce(c.address, 1, make([]byte, requestSize+answerSize)))
}

func TestSummarize(t *testing.T) {
	v := summarize([]clientWork{
		{took: harness.Latencies{3e6, 1e6}}, {took: harness.Latencies{2e6}, failed: 2, err: errors.New("no")},
	}, 2*time.Second)
	assert.Equal(t, sample{failed: 2, "perSecond": 1.5, "p50": 0.002, "p99": 0.003}, v)
}

func TestFirstError(t *testing.T) {
	a := errors.New("a")
	require.NoError(t, firstError([]error{nil, nil}))
	assert.Equal(t, "a", firstError([]error{nil, a}).Error())
	err := firstError([]error{nil, a, nil, exec.ErrNotFound})
	assert.ErrorIs(t, err, a)
	assert.Equal(t, "a; and 1 more", err.Error())
}
