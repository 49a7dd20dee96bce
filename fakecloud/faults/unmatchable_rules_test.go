package faults_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestRulesThatNeverMatchAreRefused(t *testing.T) {
	w := newWorld(t)
	for field, all := range map[string][]api.FaultMatch{
		"": {
			{Resource: "x-1"}, {Resource: "t-1"}, {Tag: "a"}, {Tag: "a", Operations: []string{"getPlain", "getThing"}},
		},
		"match.resource": {
			{Resource: "zzz"}, {Resource: "x-1", Operations: []string{"getThing"}},
			{Resource: "t-1", Operations: []string{"getPlain"}}, {Resource: "t-1", Operations: []string{"listThings"}},
		},
		"match.tag": {{Tag: "a", Operations: []string{"getPlain"}}, {Tag: "a", Operations: []string{"makeThing"}}},
	} {
		for _, m := range all {
			_, err := w.withoutRules(t).Create(t.Context(), w.project, unavailable(m))
			if field == "" {
				require.NoError(t, err, m)
				continue
			}
			requireCode(t, cloud.InvalidRequest, err)
			assert.ErrorContains(t, err, field+" never matches", m)
		}
	}
}
