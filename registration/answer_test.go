package registration

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestJudge_EachStatus(t *testing.T) {
	for _, tt := range []struct {
		status  int
		token   string
		outcome outcome
		soon    bool
		want    string // part of the reason
	}{
		{200, "", granted, false, ""},
		{204, "", granted, false, ""},
		{302, "", unexpected, false, "redirects are not followed"},
		{400, "", unexpected, false, "HTTP 400"},
		{401, "", unauthorized, false, "token_file of this worker"},
		{401, "/run/key", unauthorized, false, "the token in /run/key"},
		{403, "/run/key", forbidden, false, "start the engine with one"},
		{404, "", unsupported, false, "has no /v1/start_reporting"},
		{405, "", unsupported, false, "has no /v1/start_reporting"},
		{409, "", owned, false, "another address"},
		{422, "", unprocessed, false, "version"},
		{429, "", throttled, true, "too many requests"},
		{500, "", serverError, true, "HTTP 500"},
		{501, "", dependency, false, "optional dependency"},
		{503, "", serverError, true, "shutting down"},
		{599, "", serverError, true, "HTTP 599"},
		{999, "", serverError, true, "HTTP 999"},
	} {
		a := judge(tt.status, http.Header{}, nil, tt.token)
		if a.outcome != tt.outcome || a.outcome.soon() != tt.soon || a.http != tt.status {
			t.Errorf("%d: %+v, want outcome %d", tt.status, a, tt.outcome)
		}
		if (a.reason == "") != (tt.outcome == granted) || !strings.Contains(a.reason, tt.want) {
			t.Errorf("%d: reason %q, want %q", tt.status, a.reason, tt.want)
		}
	}
}

func TestJudge_GrantToleratesWhatIsMissing(t *testing.T) {
	for _, tt := range []struct {
		body           string
		outcome        outcome
		lease, renewal int64
	}{
		{`{"status":"ok","lease_ttl_ms":15000,"renew_after_ms":5000}`, granted, 15000, 5000},
		{`{"lease_ttl_ms":15000.0,"renew_after_ms":5e3}`, granted, 15000, 5000},
		{`{"status":"ok"}`, granted, 0, 0},
		{``, granted, 0, 0},
		{"  \n", granted, 0, 0},
		{`"started"`, granted, 0, 0},
		{`null`, granted, 0, 0},
		{`{"lease_ttl_ms":"15000","renew_after_ms":null}`, granted, 0, 0},
		{`{"lease_ttl_ms":-1,"renew_after_ms":0}`, granted, 0, 0},
		{`{"lease_ttl_ms":1e300,"renew_after_ms":0.5}`, granted, 0, 0},
		{`{"lease_ttl_ms":{},"renew_after_ms":[5000]}`, granted, 0, 0},
		{`<html>welcome</html>`, unexpected, 0, 0},
		{`{"lease_ttl_ms":15000`, unexpected, 0, 0},
		{`"` + strings.Repeat("x", maxAnswerBytes) + `"`, unexpected, 0, 0},
	} {
		a := judge(200, http.Header{}, []byte(tt.body), "")
		if a.outcome != tt.outcome || a.leaseMs != tt.lease || a.renewMs != tt.renewal {
			t.Errorf("%.40s: %+v", tt.body, a)
		}
	}
}

func TestJudge_RetryAfter(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  time.Duration
	}{
		{"", 0}, {"3", 3 * time.Second}, {" 3 ", 3 * time.Second}, {"-3", 0}, {"1.5", 0}, {"Wed, 21 Oct 2065 07:28:00 GMT", 0},
		{"99999999999999999999", 0},
	} {
		h := http.Header{}
		h.Set("Retry-After", tt.value)
		for _, status := range []int{429, 503} {
			if got := judge(status, h, nil, "").retryAfter; got != tt.want {
				t.Errorf("%d with %q: %v, want %v", status, tt.value, got, tt.want)
			}
		}
	}
}
