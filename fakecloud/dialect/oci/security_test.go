package oci_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// portRule lets TCP in at a port. cidr is where from.
func portRule(cidr string, port int) map[string]any {
	return map[string]any{
		"source": cidr, "protocol": "6", "isStateless": false,
		"tcpOptions": map[string]any{
			"destinationPortRange": map[string]any{"min": float64(port), "max": float64(port)},
		},
	}
}

func TestSecurityLists(t *testing.T) {
	c, s := startCloud(t)
	sn := get[subnet](s, "/subnets/"+*createNode(t, c, s, "node-1").vnic.SubnetID)
	path := "/securityLists/" + sn.SecurityListIDs[0]
	before := get[securityList](s, path)
	assert.Equal(t, sn.VcnID, before.VcnID)
	require.Len(t, before.Ingress, 3, "those of a VCN's default list: SSH, and ICMP's of lost packets")
	fromVCN := map[string]any{"source": *sn.CidrBlock, "protocol": "1", "icmpOptions": map[string]any{"type": float64(3)}}
	assert.Subset(t, before.Ingress[2], fromVCN)
	etag := s.lastResponse.Header.Get("etag")
	require.NotEmpty(t, etag)
	change := map[string]any{
		"ingressSecurityRules": []any{
			portRule("0.0.0.0/0", 80),
			map[string]any{"source": "10.0.0.0/8", "protocol": "all", "description": "the operator's own"},
		},
		"egressSecurityRules": []any{},
	}
	var changed securityList
	require.NoError(t, s.call(http.MethodPut, path, change, &changed, "if-match", etag))
	newer := s.lastResponse.Header.Get("etag")
	assert.NotEqual(t, etag, newer)
	after := get[securityList](s, path)
	assert.Equal(t, newer, s.lastResponse.Header.Get("etag"))
	assert.Equal(t, changed, after)
	require.Len(t, after.Ingress, 2)
	assert.Subset(t, after.Ingress[0], portRule("0.0.0.0/0", 80))
	assert.Equal(t, "the operator's own", after.Ingress[1]["description"])
	assert.Equal(t, before.TimeCreated, after.TimeCreated)
	requireRefusal(t, 412, "NoEtagMatch", s.call(http.MethodPut, path, change, nil, "if-match", etag))
	assert.Equal(t, after, get[securityList](s, path), "it is as before the refusal")
}

func TestNetworkSecurityGroups(t *testing.T) {
	c, s := startCloud(t)
	vcn := get[subnet](s, "/subnets/"+*createNode(t, c, s, "node-1").vnic.SubnetID).VcnID
	tags := map[string]string{"CreatedBy": "CCM", "ServiceUid": "uid-1"}
	name := "default/web/uid-1/nsg"
	creation := map[string]any{
		"compartmentId": s.compartment, "vcnId": vcn, "displayName": name, "freeformTags": tags,
	}
	create := func(answer any) error {
		return s.call(http.MethodPost, "/networkSecurityGroups", creation, answer, "opc-retry-token", "once")
	}
	var made, again networkSecurityGroup
	require.NoError(t, create(&made))
	require.NoError(t, create(&again))
	assert.Equal(t, made, again)
	creation["displayName"] = "another"
	requireRefusal(t, http.StatusConflict, "InvalidatedRetryToken", create(nil))
	path := "/networkSecurityGroups/" + *made.ID
	list := func(name string) []networkSecurityGroup {
		return get[[]networkSecurityGroup](
			s, "/networkSecurityGroups", "compartmentId", *s.compartment, "vcnId", *vcn, "displayName", name,
			"sortBy", "TIMECREATED", "sortOrder", "DESC",
		)
	}
	assert.Equal(t, []networkSecurityGroup{made}, list(name))
	assert.Empty(t, list("another"))
	assert.Equal(t, tags, get[networkSecurityGroup](s, path).FreeformTags)
	etag := s.lastResponse.Header.Get("etag")
	require.NotEmpty(t, etag)

	rule := portRule("0.0.0.0/0", 80)
	rule["direction"], rule["sourceType"], rule["description"] = "INGRESS", "CIDR_BLOCK", "service-uid-uid-1"
	rules := func(direction string) []map[string]any {
		return get[[]map[string]any](s, path+"/securityRules", "direction", direction)
	}
	require.NoError(t, s.call(http.MethodPost, path+"/actions/addSecurityRules", map[string]any{
		"securityRules": []any{rule},
	}, nil))
	require.Len(t, rules("INGRESS"), 1)
	assert.Subset(t, rules("INGRESS")[0], rule)
	assert.Empty(t, rules("EGRESS"))
	require.NoError(t, s.call(http.MethodPost, path+"/actions/removeSecurityRules", map[string]any{
		"securityRuleIds": []any{rules("INGRESS")[0]["id"]},
	}, nil))
	assert.Empty(t, rules("INGRESS"))

	get[networkSecurityGroup](s, path) // Its rules are no part of it, but may count as a change.
	etag = s.lastResponse.Header.Get("etag")
	rename := map[string]any{"displayName": "other", "freeformTags": tags}
	requireRefusal(t, 412, "NoEtagMatch", s.call(http.MethodPut, path, rename, nil, "if-match", "stale"))
	require.NoError(t, s.call(http.MethodPut, path, rename, nil, "if-match", etag))
	requireRefusal(t, 412, "NoEtagMatch", s.call(http.MethodDelete, path, nil, nil, "if-match", etag))
	get[networkSecurityGroup](s, path)
	etag = s.lastResponse.Header.Get("etag")
	require.NoError(t, s.call(http.MethodDelete, path, nil, nil, "if-match", etag))
	requireRefusal(t, 404, "NotAuthorizedOrNotFound", s.call(http.MethodGet, path, nil, nil))
}
