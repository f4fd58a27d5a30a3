// Multi-head attention that does the work of the active (input, head) pairs and of no others, on the CPU in float32.
//
// One pair costs the same whoever else is active: its products run on small register tiles against weights that were
// laid out for them beforehand (kernel.py), so nothing is gathered, sorted or padded to a common number of heads.
//
// Shapes, all row-major: B inputs, T tokens, D width, A heads, K head width, N floats of a tile's row. C = 3 * Kp, where
// Kp and Dp are K and D rounded up to whole tile rows.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int V = 16;  // floats of a register
constexpr int M = 8;   // rows of a tile: M * N / V registers hold its sums
#else
constexpr int V = 8;
constexpr int M = 4;
#endif
constexpr int N = 16;     // columns of a tile
constexpr int R = N / V;  // registers of its row
constexpr int MOST_ROWS = 64;              // tokens of one piece of work
constexpr int64_t CACHED_FLOATS = 1 << 20;  // of Q, K and V of the inputs in flight, about

typedef float reg __attribute__((vector_size(V * 4), aligned(4), may_alias));
typedef int32_t ireg __attribute__((vector_size(V * 4), aligned(4), may_alias));

inline const reg& at(const float* p) { return *reinterpret_cast<const reg*>(p); }
inline reg& at(float* p) { return *reinterpret_cast<reg*>(p); }
inline int64_t up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// sums[m] = sum_i rows[m][i * step] * columns[i * stride : + N], for i < depth. Everything is unrolled, so that the sums
// stay in registers.
inline __attribute__((always_inline)) void tile(const float* const* rows, int64_t step, const float* columns,
                                                int64_t stride, int64_t depth, float (*sums)[N]) {
  reg sum[M][R];
  const float* row[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    row[m] = rows[m];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) sum[m][r] = reg{};
  }
  for (int64_t i = 0; i < depth; i++, columns += stride) {
    reg column[R];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) column[r] = at(columns + r * V);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const float left = row[m][i * step];
#pragma GCC unroll 2
      for (int r = 0; r < R; r++) sum[m][r] += left * column[r];
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) at(sums[m] + r * V) = sum[m][r];
}

// e^x to a relative error of 2e-7 for x <= 0, and about 1e-38 below -87 (Cephes' polynomial).
inline __attribute__((always_inline)) reg exponential(reg x) {
  const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to a whole number, which the low bits then hold
  x = x < -87.f ? reg{} - 87.f : x;  // NaN stays NaN
  const reg shifted = x * 1.44269504088896341f + magic;
  const reg whole = shifted - magic;
  const reg rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  reg p = reg{} + 1.9875691500e-4f;
  p = p * rest + 1.3981999507e-3f;
  p = p * rest + 8.3334519073e-3f;
  p = p * rest + 4.1665795894e-2f;
  p = p * rest + 1.6666665459e-1f;
  p = p * rest + 5.0000001201e-1f;
  p = p * (rest * rest) + (rest + 1.f);
  return reinterpret_cast<reg>(reinterpret_cast<ireg>(p) + (reinterpret_cast<ireg>(shifted) << 23));
}

struct Layer {
  int64_t T, D, K, Kp, Dp, C;
  const float *qkv_weight, *qkv_bias, *out_weight, *out_bias;
};

// Q, K and V of one head for tokens from .. to of an input: qkv (T, C) = x (T, D) W + b.
void project(const Layer& layer, int64_t head, const float* x, int64_t from, int64_t to, float* qkv) {
  for (int64_t n = 0; n < layer.C; n += N) {
    const float* weight = layer.qkv_weight + (head * layer.C + n) * layer.D;
    const float* bias = layer.qkv_bias + head * layer.C + n;
    for (int64_t t = from; t < to; t += M) {
      const float* rows[M];
      float sums[M][N];
      // Past the end the last token stands in: its copies go where nobody looks.
      for (int m = 0; m < M; m++) rows[m] = x + std::min(t + m, layer.T - 1) * layer.D;
      tile(rows, 1, weight, N, layer.D, sums);
      for (int m = 0; m < M; m++)
        for (int r = 0; r < N; r += V) at(qkv + (t + m) * layer.C + n + r) = at(sums[m] + r) + at(bias + r);
    }
  }
}

// heads_out (N, Kp) of N queries from token q: gate * softmax(Q K^T / sqrt(K)) V. Scores lie as (T, N), so that the
// softmax of N queries runs down the rows, a register of queries at a time.
void attend(const Layer& layer, const float* qkv, const uint8_t* mask, float gate, int64_t q, float* queries,
            float* scores, float* heads_out) {
  const int64_t T = layer.T, K = layer.K, Kp = layer.Kp, C = layer.C;
  const float scale = 1.f / std::sqrt(static_cast<float>(K));
  for (int64_t k = 0; k < K; k++)
    for (int n = 0; n < N; n++) queries[k * N + n] = qkv[std::min(q + n, T - 1) * C + k] * scale;
  for (int64_t t = 0; t < T; t += M) {
    const float* rows[M];
    for (int m = 0; m < M; m++) rows[m] = qkv + std::min(t + m, T - 1) * C + Kp;
    tile(rows, 1, queries, N, K, reinterpret_cast<float(*)[N]>(scores + t * N));
  }
  reg high[R], sum[R];
  for (int r = 0; r < R; r++) {
    high[r] = reg{} - std::numeric_limits<float>::infinity();
    sum[r] = reg{};
  }
  for (int64_t t = 0; t < T; t++)
    if (!mask || mask[t])
      for (int r = 0; r < R; r++) {
        const reg score = at(scores + t * N + r * V);
        high[r] = score > high[r] ? score : high[r];
      }
  for (int64_t t = 0; t < T; t++)
    for (int r = 0; r < R; r++) {
      reg& score = at(scores + t * N + r * V);
      score = !mask || mask[t] ? exponential(score - high[r]) : reg{};
      sum[r] += score;
    }
  float weight[N];
  for (int r = 0; r < R; r++) at(weight + r * V) = gate / sum[r];
  for (int64_t k = 0; k < Kp; k += N)
    for (int n = 0; n < N; n += M) {
      const float* rows[M];
      float sums[M][N];
      for (int m = 0; m < M; m++) rows[m] = scores + n + m;
      tile(rows, N, qkv + 2 * Kp + k, C, T, sums);
      for (int m = 0; m < M; m++)
        for (int r = 0; r < N; r += V) at(heads_out + (n + m) * Kp + k + r) = at(sums[m] + r) * weight[n + m];
    }
}

// y (count, D) += heads_out (count, Kp) W, one head's share of the output; the first head of an input adds to the bias.
void add_output(const Layer& layer, int64_t head, const float* heads_out, int64_t count, bool first, float* y) {
  for (int64_t n = 0; n < layer.Dp; n += N) {
    const float* weight = layer.out_weight + (head * layer.Dp + n) * layer.K;
    const int64_t width = std::min<int64_t>(N, layer.D - n);
    for (int64_t t = 0; t < count; t += M) {
      const float* rows[M];
      float sums[M][N];
      for (int m = 0; m < M; m++) rows[m] = heads_out + std::min(t + m, count - 1) * layer.Kp;
      tile(rows, 1, weight, N, layer.K, sums);
      for (int m = 0; m < M && t + m < count; m++) {
        float* out = y + (t + m) * layer.D + n;
        const float* before = first ? layer.out_bias + n : out;
        for (int64_t i = 0; i < width; i++) out[i] = before[i] + sums[m][i];
      }
    }
  }
}

// How the work of one call is cut up, and how many floats it needs beside its input and output.
struct Plan {
  std::vector<int64_t> heads, first{0};  // the active pairs, by input: those of input i are from first[i] on
  std::vector<int64_t> groups{0};        // inputs that go through both products together
  int64_t rows = MOST_ROWS, pieces, Tp, most_pairs = 0;
  int64_t of_qkv, of_thread;  // floats

  Plan(const float* gates, int64_t B, int64_t T, int64_t A, int64_t K, int64_t threads) {
    const int64_t Kp = up(K, N), C = 3 * Kp;
    for (int64_t i = 0; i < B; i++) {
      for (int64_t h = 0; h < A; h++)
        if (!gates || gates[i * A + h] > 0) heads.push_back(h);
      first.push_back(static_cast<int64_t>(heads.size()));
    }
    // Pieces of work are rows of an input: small enough to keep every thread busy, large enough to reuse the weights.
    while (rows > N && B * (up(T, rows) / rows) < 4 * threads) rows /= 2;
    pieces = up(T, rows) / rows;
    Tp = pieces * rows;
    // Inputs go through both products in groups whose Q, K and V stay in the cache: as many floats as whole inputs with
    // all heads would take, so that fewer heads never take more memory.
    const int64_t whole = std::max<int64_t>(A * Tp * C, 1);  // 0 without tokens
    const int64_t most_floats = std::max<int64_t>(CACHED_FLOATS / whole, 1) * whole;
    for (int64_t i = 1; i < B; i++) {
      const bool full = (first[i + 1] - first[groups.back()]) * Tp * C > most_floats;
      if (full && (i - groups.back()) * pieces >= 4 * threads) groups.push_back(i);
    }
    groups.push_back(B);
    for (size_t g = 0; g + 1 < groups.size(); g++)
      most_pairs = std::max(most_pairs, first[groups[g + 1]] - first[groups[g]]);
    of_qkv = most_pairs * Tp * C;
    of_thread = up(Tp * N + K * N + rows * Kp, N);  // scores, queries and outputs of heads
  }
};

}  // namespace

// The floats that a call needs beside its input and output; -1 where there is not even memory to plan it.
extern "C" int64_t budgetformer_scratch_floats(const float* gates, int64_t B, int64_t T, int64_t A, int64_t K,
                                               int64_t threads) try {
  const Plan plan(gates, B, T, A, K, threads);
  return plan.of_qkv + threads * plan.of_thread;
} catch (const std::bad_alloc&) {
  return -1;
}

// gates (B, A), null for 1 everywhere; mask (B, T), null where no token is padding, else with a real token in each row;
// scratch of as many floats as the function above says. Gives 0, or -1 where there is no memory to plan the call.
extern "C" int64_t budgetformer_head_attention(const float* x, const float* gates, const uint8_t* mask,
                                               const float* qkv_weight, const float* qkv_bias,
                                               const float* out_weight, const float* out_bias, float* y, float* scratch,
                                               int64_t B, int64_t T, int64_t D, int64_t A, int64_t K,
                                               int64_t threads) try {
  const int64_t Kp = up(K, N), Dp = up(D, N), C = 3 * Kp;
  const Layer layer{T, D, K, Kp, Dp, C, qkv_weight, qkv_bias, out_weight, out_bias};
  const Plan plan(gates, B, T, A, K, threads);

#pragma omp parallel num_threads(threads)
  {
    float* const scores = scratch + plan.of_qkv + omp_get_thread_num() * plan.of_thread;
    float* const queries = scores + plan.Tp * N;
    float* const heads_out = queries + K * N;
    for (size_t g = 0; g + 1 < plan.groups.size(); g++) {
      const int64_t begin = plan.groups[g], work = (plan.groups[g + 1] - begin) * plan.pieces;
      const auto of_pair = [&](int64_t pair) { return scratch + (pair - plan.first[begin]) * plan.Tp * C; };
#pragma omp for schedule(dynamic, 1)
      for (int64_t piece = 0; piece < work; piece++) {
        const int64_t i = begin + piece / plan.pieces, from = piece % plan.pieces * plan.rows;
        const int64_t to = std::min(from + plan.rows, T);
        for (int64_t pair = plan.first[i]; pair < plan.first[i + 1]; pair++)
          project(layer, plan.heads[pair], x + i * T * D, from, to, of_pair(pair));
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t piece = 0; piece < work; piece++) {
        const int64_t i = begin + piece / plan.pieces, from = piece % plan.pieces * plan.rows;
        const int64_t to = std::min(from + plan.rows, T);
        float* out = y + (i * T + from) * D;
        if (plan.first[i] == plan.first[i + 1])
          for (int64_t t = from; t < to; t++, out += D) std::copy(out_bias, out_bias + D, out);
        for (int64_t pair = plan.first[i]; pair < plan.first[i + 1]; pair++) {
          const int64_t head = plan.heads[pair];
          for (int64_t q = from; q < to; q += N)
            attend(layer, of_pair(pair), mask ? mask + i * T : nullptr, gates ? gates[i * A + head] : 1.f, q, queries,
                   scores, heads_out + (q - from) * Kp);
          add_output(layer, head, heads_out, to - from, pair == plan.first[i], out);
        }
      }
    }
  }
  return 0;
} catch (const std::bad_alloc&) {
  return -1;
}
