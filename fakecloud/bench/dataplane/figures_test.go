package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMakeRow(t *testing.T) {
	rate := func(v float64) sample { return sample{"perSecond": v, "p99": 1 / v} }
	connections, requests, restart := figures[2], figures[3], figures[7]
	both := []string{haproxy, haproxySplice}
	for name, c := range map[string]struct {
		figure
		asked   []string
		samples map[string]sample
		holds   any
		ratios  string
	}{
		"beside the better peer it holds": {
			connections, both, map[string]sample{fakecloud: rate(75), haproxy: rate(50), haproxySplice: rate(100)},
			true, "1.50× / 0.75×",
		},
		"beside the better peer it does not": {
			connections, both, map[string]sample{fakecloud: rate(60), haproxy: rate(50), haproxySplice: rate(100)},
			false, "1.20× / 0.60×",
		},
		"less is better": {
			requests, both, map[string]sample{fakecloud: rate(100), haproxy: rate(200), haproxySplice: rate(50)}, false,
			"2.00× / 0.50×",
		},
		"one of two peers is not there": {
			requests, both, map[string]sample{fakecloud: rate(100), haproxySplice: rate(100)}, nil, "1.00×",
		},
		"only one peer was asked for": {
			requests, both[1:], map[string]sample{fakecloud: rate(100), haproxySplice: rate(100)}, true, "1.00×",
		},
		"a peer failed clients": {
			connections, both,
			map[string]sample{fakecloud: rate(75), haproxy: {"perSecond": 50, failed: 1}, haproxySplice: rate(100)},
			nil, "1.50× / 0.75×",
		},
		"a peer did nothing": {
			connections, both, map[string]sample{fakecloud: rate(75), haproxy: rate(50), haproxySplice: {}}, nil,
			"1.50×",
		},
		"nobody to compare with": {connections, nil, map[string]sample{fakecloud: rate(75)}, nil, ""},
		"ours failed":            {connections, both, map[string]sample{haproxy: rate(75)}, false, ""},
		"some of ours failed": {
			connections, both, map[string]sample{fakecloud: {"perSecond": 99, failed: 1}, haproxy: rate(75)}, false,
			"1.32×",
		},
		"a time that is compared with the aim": {restart, nil, map[string]sample{fakecloud: {"late": 0.5}}, true, ""},
		"a time that is longer than it is to be": {
			restart, nil, map[string]sample{fakecloud: {"late": 1.5}}, false, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.makeRow(&stage{requestedPeers: c.asked}, c.samples, true)
			assert.Equal(t, c.ratios, r.ratioText(haproxy, haproxySplice, nginx))
			if c.holds == nil {
				assert.Nil(t, r.Holds)
				return
			}
			require.NotNil(t, r.Holds)
			assert.Equal(t, c.holds, *r.Holds)
			assert.Nil(t, c.makeRow(&stage{requestedPeers: c.asked}, c.samples, false).Holds)
		})
	}
}
