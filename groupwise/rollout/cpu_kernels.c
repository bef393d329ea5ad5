/* What a decode step on a CPU does beside its matrix products: attention over pages, norms, gates,
   and the drawing of tokens. cpu_kernels.py compiles and calls it.

   Activations lie features first: x[feature * rows + row]. So the products (weight @ x) read weights
   and activations as they lie, and a loop over rows is a loop over neighbours. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define ROWS 16  /* rows that one thread normalises together */
#define TILE 128 /* tokens of the vocabulary that are looked at together */
#define MAX_GROUP 128
#define MAX_HEAD_SIZE 256
#define MAX_PAGE 256

static inline float from_bits(int32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline int32_t to_bits(float x) { int32_t bits; memcpy(&bits, &x, 4); return bits; }

/* exp by 2^k times a Taylor series around 0, for |r| <= ln(2) / 2. */
static inline float exp_of(float x)
{
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float k = floorf(x * 1.44269504f + 0.5f);
    float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * from_bits((int32_t)((uint32_t)((int32_t)k + 127) << 23));
}

/* log by e ln(2) + 2 atanh(s), s = (m - 1) / (m + 1), for m between sqrt(1/2) and sqrt(2). */
static inline float log_of(float x)
{
    int32_t e = (to_bits(x) - 0x3f3504f3) >> 23;
    float f = from_bits(to_bits(x) - (int32_t)((uint32_t)e << 23)) - 1.0f;
    float s = f / (f + 2.0f), z = s * s;
    float p = 1.0f / 11;
    p = p * z + 1.0f / 9;
    p = p * z + 1.0f / 7;
    p = p * z + 1.0f / 5;
    p = p * z + 1.0f / 3;
    return (float)e * 0.693147181f + (2.0f * s + 2.0f * s * z * p);
}

/* log(1 + x), also where 1 + x is rounded. */
static inline float log1p_of(float x)
{
    float u = 1.0f + x;
    return log_of(u) - ((u - 1.0f) - x) / u;
}

/* noise.py's hash, and the Gumbel noise that follows from it. */
static inline uint32_t mix(uint32_t h, uint32_t salt)
{
    h ^= h >> 16;
    h = h * 0x85EBCA6Bu + salt;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    return h ^ (h >> 16);
}

static inline float gumbel(uint32_t token, uint32_t low, uint32_t high, float below)
{
    uint32_t h = mix((token * 0x9E3779B9u) ^ low, high);
    float minus_v = ((float)(int32_t)((h >> 1) | 0x80000000u) + below) * ((1.0f - 0x1p-24f) * 0x1p-31f);
    return -log_of(-log1p_of(minus_v));
}

typedef struct { double sum; float max, best, logit; int64_t token; } Draw;
_Static_assert(sizeof(Draw) == 32, "as cpu_kernels.py has it");

/* One row's tokens from `first` to `last`: the softmax's maximum and sum, and the best with noise. */
static void draw_part(const float *logits, int64_t stride, int64_t first, int64_t last, float temperature,
                      int noisy, uint32_t low, uint32_t high, float below, Draw *draw)
{
    float x[TILE], y[TILE];
    for (int64_t start = first; start < last; start += TILE) {
        int count = last - start < TILE ? (int)(last - start) : TILE;
        const float *from = logits + start * stride;
        for (int i = 0; i < count; i++) x[i] = from[i * stride] / temperature;
        float top = -INFINITY, total = 0;
#pragma omp simd reduction(max : top)
        for (int i = 0; i < count; i++) top = x[i] > top ? x[i] : top;
        if (top > draw->max) {
            draw->sum *= draw->max == -INFINITY ? 0 : exp_of(draw->max - top);
            draw->max = top;
        }
        float max = draw->max;
#pragma omp simd reduction(+ : total)
        for (int i = 0; i < count; i++) total += exp_of(x[i] - max);
        draw->sum += total;
        float best = -INFINITY;
        if (noisy) {
#pragma omp simd
            for (int i = 0; i < count; i++) y[i] = x[i] + gumbel((uint32_t)(start + i), low, high, below);
        } else {
            memcpy(y, x, sizeof x);
        }
#pragma omp simd reduction(max : best)
        for (int i = 0; i < count; i++) best = y[i] > best ? y[i] : best;
        if (best > draw->best) {
            draw->best = best;
            int i = 0;
            while (y[i] != best) i++;
            draw->token = start + i;
            draw->logit = x[i];
        }
    }
}

void draw_tokens(const float *logits, int64_t row_stride, int64_t token_stride, int64_t rows, int64_t vocab,
                 const int32_t *keys, const int64_t *positions, float temperature, int64_t *tokens,
                 float *logprobs, Draw *parts, int64_t threads)
{
    int64_t tiles = (vocab + TILE - 1) / TILE;
    int noisy = temperature > 0;
    float divisor = noisy ? temperature : 1.0f;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; part++) {
        int64_t first = part * tiles / threads * TILE, last = (part + 1) * tiles / threads * TILE;
        last = last < vocab ? last : vocab;
        for (int64_t row = 0; row < rows; row++) {
            parts[part * rows + row] = (Draw){0, -INFINITY, -INFINITY, 0, 0};
        }
        /* A tile of all rows before the next one: features first, these are the same memory. */
        for (int64_t start = first; start < last; start += TILE) {
            int64_t end = start + TILE < last ? start + TILE : last;
            for (int64_t row = 0; row < rows; row++) {
                uint32_t low = mix((uint32_t)keys[2 * row] ^ mix((uint32_t)positions[row] * 0x9E3779B9u, 0), 0);
                uint32_t high = mix((uint32_t)keys[2 * row + 1] + low, 0);
                low = mix(low ^ high, 0);
                float below = ((float)(mix(low + 0x9E3779B9u, 0) >> 9) + 0.5f) * 0x1p-23f;
                draw_part(logits + row * row_stride, token_stride, start, end, divisor, noisy, low, high, below,
                          &parts[part * rows + row]);
            }
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        Draw all = parts[row];
        for (int64_t part = 1; part < threads; part++) {
            Draw own = parts[part * rows + row];
            float max = own.max > all.max ? own.max : all.max;
            all.sum = all.sum * exp_of(all.max - max) + own.sum * exp_of(own.max - max);
            all.max = max;
            if (own.best > all.best) { all.best = own.best; all.token = own.token; all.logit = own.logit; }
        }
        tokens[row] = all.token;
        logprobs[row] = (float)((double)all.logit - all.max - log(all.sum));
    }
}

/* hidden += delta (where there is one), and out = hidden / rms(hidden) * weight, row by row. */
void add_norm(float *hidden, const float *delta, const float *weight, float eps, float *out, int64_t features,
              int64_t rows, int64_t threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (features * rows > 8192)
    for (int64_t first = 0; first < rows; first += ROWS) {
        int count = rows - first < ROWS ? (int)(rows - first) : ROWS;
        float squares[ROWS] = {0};
        for (int64_t f = 0; f < features; f++) {
            float *h = hidden + f * rows + first;
            if (delta) {
                const float *d = delta + f * rows + first;
                for (int r = 0; r < count; r++) h[r] += d[r];
            }
            for (int r = 0; r < count; r++) squares[r] += h[r] * h[r];
        }
        for (int r = 0; r < count; r++) squares[r] = 1.0f / sqrtf(squares[r] / (float)features + eps);
        for (int64_t f = 0; f < features; f++) {
            const float *h = hidden + f * rows + first;
            float *o = out + f * rows + first;
            for (int r = 0; r < count; r++) o[r] = h[r] * squares[r] * weight[f];
        }
    }
}

/* gate = silu(gate) * up */
void gated(float *gate, const float *up, int64_t size, int64_t threads)
{
#pragma omp parallel for simd num_threads(threads) schedule(static) if (size > 8192)
    for (int64_t i = 0; i < size; i++) gate[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
}

/* Strides are those from row to row, from head to head, and from element to element of a head. */
static void load_head(const float *x, const int64_t *strides, int64_t row, int64_t head, const float *cos,
                      const float *sin, int size, float *out)
{
    const float *from = x + row * strides[0] + head * strides[1];
    for (int d = 0; d < size; d++) out[d] = from[d * strides[2]];
    if (!cos) return;
    cos += row * size;
    sin += row * size;
    for (int d = 0, half = size / 2; d < half; d++) {
        float a = out[d], b = out[d + half];
        out[d] = a * cos[d] - b * sin[d];
        out[d + half] = b * cos[d + half] + a * sin[d + half];
    }
}

/* A head's queries over some tokens of a page: softmax weights, and sums of values weighted by them. With
   sizes that are known when this is compiled, a query and a sum stay in registers. */
static inline __attribute__((always_inline)) void attend_page(const float *queries, const float *keys,
                                                              const float *values, int64_t tokens, int64_t group,
                                                              int64_t size, float scale, float softcap,
                                                              float *max, float *total, float *sums)
{
    float weights[MAX_PAGE];
    for (int64_t g = 0; g < group; g++) {
        const float *query = queries + g * size;
        float top = max[g], added = 0, sum[MAX_HEAD_SIZE];
        for (int64_t j = 0; j < tokens; j++) {
            const float *key = keys + j * size;
            float score = 0;
#pragma omp simd reduction(+ : score)
            for (int64_t d = 0; d < size; d++) score += query[d] * key[d];
            weights[j] = score * scale;
        }
        if (softcap > 0)
            for (int64_t j = 0; j < tokens; j++) weights[j] = softcap * tanhf(weights[j] / softcap);
#pragma omp simd reduction(max : top)
        for (int64_t j = 0; j < tokens; j++) top = weights[j] > top ? weights[j] : top;
        float shrink = max[g] == -INFINITY ? 0 : exp_of(max[g] - top);
#pragma omp simd reduction(+ : added)
        for (int64_t j = 0; j < tokens; j++) {
            weights[j] = exp_of(weights[j] - top);
            added += weights[j];
        }
        for (int64_t d = 0; d < size; d++) sum[d] = sums[g * size + d] * shrink;
        for (int64_t j = 0; j < tokens; j++)
            for (int64_t d = 0; d < size; d++) sum[d] += weights[j] * values[j * size + d];
        for (int64_t d = 0; d < size; d++) sums[g * size + d] = sum[d];
        total[g] = total[g] * shrink + added;
        max[g] = top;
    }
}

/* Each row's new token: its key and value go to their page, and its queries attend to all pages.
   `cos` and `sin` (rows, size) rotate queries and keys first, if not null. `strides`: of q, k, v and out. */
void decode_attention(const float *q, const float *k, const float *v, float *out, const int64_t *strides,
                      float *keys, float *values, const int64_t *pages, int64_t width, const int64_t *kv_lens,
                      const float *cos, const float *sin, int64_t rows, int64_t kv_heads, int64_t group,
                      int64_t size, int64_t page, int64_t window, float scale, float softcap, int64_t threads)
{
    const int64_t *q_strides = strides, *k_strides = strides + 3, *v_strides = strides + 6, *to_strides = strides + 9;
#pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < kv_heads; head++) {
            float queries[MAX_GROUP * MAX_HEAD_SIZE], sums[MAX_GROUP * MAX_HEAD_SIZE], max[MAX_GROUP], total[MAX_GROUP];
            const int64_t *own = pages + row * width;
            int64_t newest = kv_lens[row], first = window && newest + 1 > window ? newest + 1 - window : 0;
            int64_t place = own[newest / page] + (head * page + newest % page) * size;
            load_head(k, k_strides, row, head, cos, sin, (int)size, keys + place);
            load_head(v, v_strides, row, head, 0, 0, (int)size, values + place);
            for (int64_t g = 0; g < group; g++) {
                load_head(q, q_strides, row, head * group + g, cos, sin, (int)size, queries + g * size);
                max[g] = -INFINITY;
                total[g] = 0;
            }
            memset(sums, 0, sizeof(float) * (size_t)(group * size));
            for (int64_t n = first / page; n <= newest / page; n++) {
                int64_t from = first > n * page ? first - n * page : 0;
                int64_t tokens = (newest + 1 - n * page < page ? newest + 1 - n * page : page) - from;
                int64_t start = own[n] + (head * page + from) * size;
                const float *ks_n = keys + start, *vs_n = values + start;
                if (size == 64)
                    attend_page(queries, ks_n, vs_n, tokens, group, 64, scale, softcap, max, total, sums);
                else if (size == 128)
                    attend_page(queries, ks_n, vs_n, tokens, group, 128, scale, softcap, max, total, sums);
                else
                    attend_page(queries, ks_n, vs_n, tokens, group, size, scale, softcap, max, total, sums);
            }
            for (int64_t g = 0; g < group; g++) {
                float *to = out + row * to_strides[0] + (head * group + g) * to_strides[1];
                for (int64_t d = 0; d < size; d++) to[d * to_strides[2]] = sums[g * size + d] / total[g];
            }
        }
}
