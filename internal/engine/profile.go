package engine

import (
	"math"

	"github.com/loadmonitor/loadmonitor/load"
)

// profile is what one rank of an engine of some role can do and what it is asked for. Times are seconds.
type profile struct {
	maxTokens  int64 // KV capacity
	maxRunning int

	// A decode step with n running requests takes stepBase + n*stepPerRequest and makes one token for each of them, so the
	// throughput of a rank saturates at 1/stepPerRequest.
	stepBase, stepPerRequest float64
	prefillRate              float64 // tokens computed per second by an otherwise idle rank

	prompt, output sizes
	maxOutput      float64
	// cachedOften is how often a prompt has a cached prefix at all; its share is then even between 0.2 and 0.9.
	cachedOften float64

	prefills bool // prompts are computed here
	decodes  bool // tokens are made here; otherwise output is the steps for which a transfer holds the KV
}

// sizes is a log-normal distribution of tokens.
type sizes struct{ median, sigma float64 }

func (s sizes) mean() float64 { return s.median * math.Exp(s.sigma*s.sigma/2) }

const (
	maxQueued = 512 // waiting requests per rank; beyond it an engine rejects

	decodeTax  = 0.45 // share of decode speed that a prefill in the same rank takes
	prefillTax = 0.3  // share of prefill speed that a full batch takes

	admitReserve  = 0.04 // share of the capacity that an admission leaves free for the tokens to come
	retractTarget = 0.92 // a full rank retracts until it uses no more than this share
)

// profiles are loosely those of a large model on one node; prefill and decode differ as in a disaggregated deployment.
var profiles = map[load.Role]profile{
	load.RoleRegular: {
		maxTokens: 72_000, maxRunning: 48, stepBase: 0.020, stepPerRequest: 0.00025, prefillRate: 16_000,
		prompt: sizes{700, 0.95}, output: sizes{350, 0.8}, maxOutput: 4096, cachedOften: 0.7,
		prefills: true, decodes: true,
	},
	load.RolePrefill: {
		maxTokens: 160_000, maxRunning: 32, stepBase: 0.010, stepPerRequest: 0.0001, prefillRate: 18_000,
		prompt: sizes{2500, 0.95}, output: sizes{6, 0.6}, maxOutput: 60, cachedOften: 0.7,
		prefills: true,
	},
	load.RoleDecode: {
		maxTokens: 300_000, maxRunning: 64, stepBase: 0.018, stepPerRequest: 0.0002,
		prompt: sizes{2500, 0.95}, output: sizes{350, 0.8}, maxOutput: 4096,
		decodes: true,
	},
}

// maxPrompt bounds a prompt so that a few always fit.
func (p *profile) maxPrompt() float64 { return float64(p.maxTokens) / 4 }

// meanUncached is what a prompt costs on average; 0.55 is the mean cached share where there is one.
func (p *profile) meanUncached() float64 {
	if !p.prefills {
		return 0
	}
	return p.prompt.mean() * (1 - p.cachedOften*0.55)
}

// sustainable returns the requests per second that a rank can serve for good.
func (p *profile) sustainable() float64 {
	busyPerRequest := 0.0 // seconds of prefill
	if p.prefills {
		busyPerRequest = p.meanUncached() / (p.prefillRate * (1 - prefillTax/2))
	}
	if !p.decodes {
		return 1 / busyPerRequest
	}
	// The batch is bounded by slots or by KV, whichever is reached first.
	n := min(float64(p.maxRunning), retractTarget*float64(p.maxTokens)/(p.prompt.mean()+p.output.mean()/2))
	made := n / (p.stepBase + n*p.stepPerRequest)
	rate := made / (p.output.mean() + made*decodeTax*busyPerRequest)
	if busyPerRequest > 0 {
		rate = min(rate, 1/busyPerRequest)
	}
	return rate
}
