// What Python sees of the native part (pagoda.backends._native). Arrays are checked here; nothing holds the GIL while it waits.
// What jobs hold is made as a shared_ptr (nb::new_), so that a worker that drops the last one needs no GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "dispatch.h"
#include "measure.h"
#include "page_job.h"
#include "self_test.h"
#include "step_job.h"
#include "suffixes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pagoda {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class A>
auto copied(const A& a) {
  using T = std::remove_const_t<typename A::Scalar>;
  return std::vector<T>(a.data(), a.data() + a.size());
}

Format format_named(const std::string& name) {
  static const std::map<std::string, Format> formats = {
      {"f32", Format::F32}, {"f16", Format::F16}, {"bf16", Format::BF16}, {"q4_0", Format::Q4_0},
      {"q4_1", Format::Q4_1}, {"q5_0", Format::Q5_0}, {"q5_1", Format::Q5_1}, {"q8_0", Format::Q8_0},
      {"q2_k", Format::Q2_K}, {"q3_k", Format::Q3_K}, {"q4_k", Format::Q4_K}, {"q5_k", Format::Q5_K},
      {"q6_k", Format::Q6_K}, {"iq4_nl", Format::IQ4_NL}, {"iq4_xs", Format::IQ4_XS}, {"mxfp4", Format::MXFP4},
      {"q4_z32", Format::Q4_Z32}, {"q4_z128", Format::Q4_Z128}, {"q8_z32", Format::Q8_Z32}, {"q8_z128", Format::Q8_Z128},
      {"f8_e4m3", Format::F8_E4M3}, {"f8_e5m2", Format::F8_E5M2}};
  const auto found = formats.find(name);
  if (found == formats.end()) throw std::invalid_argument("no native kernels for weights in " + name);
  return found->second;
}

size_t packed_bytes(const std::string& format, int n, int k) {
  return size_t((n + kTile - 1) / kTile) * packed_tile_bytes(format_named(format), k);
}

KVFormat kv_format_named(const std::string& name) {
  static const std::map<std::string, KVFormat> formats = {
      {"f32", KVFormat::F32}, {"f16", KVFormat::F16}, {"int8", KVFormat::Int8}, {"int4", KVFormat::Int4}};
  const auto found = formats.find(name);
  if (found == formats.end()) throw std::invalid_argument("no native kernels for keys and values in " + name);
  return found->second;
}

template <class T>
nb::ndarray<nb::numpy, T> to_numpy(std::vector<T> values, std::vector<size_t> shape) {
  auto* held = new std::vector<T>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete (std::vector<T>*)p; });
  return nb::ndarray<nb::numpy, T>(held->data(), shape.size(), shape.data(), owner);
}

// A matrix's bytes, or where they lie: an open file's descriptor and an offset.
using Place = std::tuple<int, int64_t>;
using MatrixTuple = std::tuple<std::string, int, int, std::variant<Bytes, Place>>;

Unpacked unpacked(const MatrixTuple& matrix) {
  const auto& [format, n, k, source] = matrix;
  const Format f = format_named(format);
  const Bytes* raw = std::get_if<Bytes>(&source);
  if (n < 1 || k < 1 || k % stored_block(f) || (raw && raw->size() != size_t(n) * stored_row_bytes(f, k)))
    throw std::invalid_argument("a matrix of this shape and format has another size in bytes");
  if (raw) return {f, n, k, raw->data(), -1, 0};
  const auto [descriptor, offset] = std::get<Place>(source);
  return {f, n, k, nullptr, descriptor, offset};
}

// All of them in one call: taking the GIL back between them would wait for whatever Python runs beside.
std::vector<std::shared_ptr<Weight>> pack_matrices(Pool& pool, const std::vector<MatrixTuple>& matrices) {
  std::vector<Unpacked> list;
  for (const auto& m : matrices) list.push_back(unpacked(m));
  nb::gil_scoped_release release;
  return pack(pool, list);
}

// Extents (descriptor, offset, bytes) of open files, likewise in one call.
nb::list read_files(const std::vector<std::tuple<int, int64_t, int64_t>>& extents) {
  std::vector<std::vector<uint8_t>> all;
  {
    nb::gil_scoped_release release;
    for (const auto& [descriptor, offset, bytes] : extents) {
      all.emplace_back(size_t(bytes));
      read_file(descriptor, offset, size_t(bytes), all.back().data());
    }
  }
  nb::list arrays;
  for (auto& bytes : all) arrays.append(to_numpy(std::move(bytes), {bytes.size()}));
  return arrays;
}

// (tokens of each draw [draws], then one after the other: tokens, log-probabilities, and the likeliest tokens with theirs)
nb::tuple drawn(const StepJob& job) {
  nb::list counts, tokens, logprobs, top;
  for (const auto& drawn : job.drawn()) {
    counts.append(drawn.size());
    for (const auto& d : drawn) {
      tokens.append(d.token);
      logprobs.append(d.logprob);
      nb::list likeliest;
      for (size_t i = 0; i < d.top_ids.size(); i++) likeliest.append(nb::make_tuple(d.top_ids[i], d.top_logprobs[i]));
      top.append(nb::tuple(likeliest));
    }
  }
  return nb::make_tuple(nb::tuple(counts), nb::tuple(tokens), nb::tuple(logprobs), nb::tuple(top));
}

// Bytes are copied before this returns: the job holds no Python object.
std::shared_ptr<PageJob> transfer(Pool& pool, std::shared_ptr<KVStore> kv, const std::vector<std::vector<int>>& saves,
                                  const std::vector<std::tuple<std::vector<int>, Bytes>>& loads) {
  nb::gil_scoped_release release;
  std::vector<PageMove> out, in;
  for (const auto& unit : saves) out.push_back({unit, {}});
  for (const auto& [unit, bytes] : loads) in.push_back({unit, copied(bytes)});
  auto job = std::make_shared<PageJob>(std::move(kv), std::move(out), std::move(in));
  pool.submit(job);
  return job;
}

nb::list saved(PageJob& job) {
  nb::list result;
  for (auto& save : job.saves()) {
    const size_t n = save.bytes.size();
    result.append(to_numpy(std::move(save.bytes), {n}));
  }
  return result;
}

nb::dict outputs(const StepJob& job) {
  nb::dict result;
  for (const auto& [name, values] : job.outputs()) {
    const size_t width = size_t(job.widths().at(name));
    result[name.c_str()] = to_numpy(std::vector<float>(values), {values.size() / width, width});
  }
  return result;
}

Step make_step(const Ints& ids, const Ints& positions, const Ints& sequences, const Ints& sampled, const Ints& slots,
               const Ints& guesses, const Ints& parents, const std::vector<Ints2>& tables, const std::map<std::string, Floats2>& inputs) {
  Step step;
  step.ids = copied(ids);
  step.positions = copied(positions);
  step.sequences = copied(sequences);
  step.sampled = copied(sampled);
  step.slots = copied(slots);
  step.guesses = copied(guesses);
  step.parents = copied(parents);
  for (const auto& t : tables) step.tables.push_back({copied(t), int(t.shape(1))});
  for (const auto& [name, x] : inputs) step.inputs[name] = copied(x);
  return step;
}

using DrawTuple = std::tuple<int, uint64_t, int, int, float, float, float, float, float, float, int, int, int>;

DrawRow draw_row(const DrawTuple& t) {
  DrawRow row{};
  std::tie(row.slot, row.seed, row.choice, row.position, row.temperature, row.top_p, row.min_p, row.repetition, row.frequency, row.presence,
           row.top_k, row.logprobs, row.drafts) = t;
  return row;
}

// A line, the tokens that it goes on with, and how many of these, the first ones, tell nothing of how good matches are.
using Look = std::tuple<std::shared_ptr<Line>, std::vector<int32_t>, int>;

// Of each: (length of its match, up to `most` tokens that followed it, (length of the match before a token, whether that foretold it)).
// The GIL is kept: a token takes a fraction of a microsecond, and the engine's thread needs it before and after.
nb::list follow(const std::vector<Look>& looks, int shortest, int most) {
  nb::list found;
  for (const auto& [line, tokens, silent] : looks) {
    nb::list judged;
    for (size_t i = 0; i < tokens.size(); i++) {
      const int length = line->match();
      if (int(i) >= silent && length >= shortest && line->next() != Line::kBreak) judged.append(nb::make_tuple(length, line->next() == tokens[i]));
      line->extend(tokens[i]);
    }
    const bool long_enough = line->match() >= shortest;
    found.append(nb::make_tuple(line->match(), nb::tuple(nb::cast(line->continuation(long_enough ? most : 0))), judged));
  }
  return found;
}

}  // namespace
}  // namespace pagoda

NB_MODULE(_native, m) {
  using namespace pagoda;
  m.def("isas", &usable_isas, "Instruction sets that this machine has, best first; `scalar` is last.");
  m.def("self_test", [](const std::string& isa) { return self_test(kernels_for(isa)); }, "isa"_a, nb::call_guard<nb::gil_scoped_release>());

  // cos and sin of position * frequency, [positions * frequencies] each.
  m.def(
      "rope_angles",
      [](nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu> frequencies, int positions) {
        const size_t n = frequencies.size();
        std::vector<float> cosines(n * size_t(positions)), sines(n * size_t(positions));
        {
          nb::gil_scoped_release release;
          for (size_t p = 0; p < size_t(positions); p++)
            for (size_t i = 0; i < n; i++) {
              double s, c;
              sincos_exact(double(p) * frequencies.data()[i], s, c);
              cosines[p * n + i] = float(c), sines[p * n + i] = float(s);
            }
        }
        return nb::make_tuple(to_numpy(std::move(cosines), {size_t(positions), n}), to_numpy(std::move(sines), {size_t(positions), n}));
      },
      "frequencies"_a, "positions"_a);

  // Its end waits for the workers, and a worker that drops the last hold on a step's objects needs the GIL to do so.
  const auto let_go = [](Pool* pool) {
    nb::gil_scoped_release release;
    delete pool;
  };
  nb::class_<Pool>(m, "Pool")
      .def(nb::new_([let_go](int threads) { return std::shared_ptr<Pool>(new Pool(threads), let_go); }), "threads"_a)
      .def_prop_ro("threads", &Pool::threads);

  nb::class_<ReadBuffer>(m, "ReadBuffer")
      .def(nb::init<Pool&, int64_t>(), "pool"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("bandwidth", &ReadBuffer::bandwidth, "pool"_a, "isa"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("multiply_adds", &multiply_adds, "pool"_a, "isa"_a, "kind"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Weight>(m, "Weight")
      .def_prop_ro("bytes", &Weight::bytes)
      .def_prop_ro("address", [](const Weight& w) { return uintptr_t(w.packed().data); });
  m.def("packed_bytes", &packed_bytes, "format"_a, "n"_a, "k"_a, "Bytes of a matrix [n, k] once it is packed.");
  nb::exception<ReadFailed>(m, "ReadFailed", PyExc_OSError);
  m.def("pack", &pack_matrices, "pool"_a, "matrices"_a);
  m.def("read_files", &read_files, "extents"_a);

  nb::class_<KVStore>(m, "KVStore")
      .def(
          nb::new_([](const std::vector<std::tuple<int, int, int, int64_t>>& groups, int slots, const std::string& format, Pool* pool) {
            std::vector<GroupShape> shapes;
            for (const auto& [layers, heads, dim, pages] : groups) {
              if (pages > INT32_MAX) throw std::bad_alloc();
              shapes.push_back({layers, heads, dim, int(pages)});
            }
            nb::gil_scoped_release release;
            return std::make_shared<KVStore>(std::move(shapes), slots, kv_format_named(format), pool);
          }),
          "groups"_a, "slots"_a, "format"_a, "pool"_a.none() = nb::none())
      .def_prop_ro("bytes", &KVStore::bytes)
      .def("copy", &KVStore::copy, "group"_a, "source"_a, "target"_a, "slots"_a)
      .def_prop_ro("unit_bytes", &KVStore::unit_bytes);

  nb::class_<Text>(m, "Text")
      .def(nb::new_([] { return std::make_shared<Text>(); }))
      .def("extend", [](Text& text, const std::vector<int32_t>& tokens) { for (const int32_t t : tokens) text.extend(t); }, "tokens"_a)
      .def("__len__", [](const Text& text) { return text.tokens().size(); })
      .def_prop_ro("bytes", &Text::bytes)
      .def("check", &Text::check);
  nb::class_<Line>(m, "Line")
      .def(nb::new_([](std::vector<std::shared_ptr<const Text>> others) { return std::make_shared<Line>(std::move(others)); }), "others"_a)
      .def("__len__", &Line::size)
      .def("check", &Line::check);
  m.def("follow", &follow, "looks"_a, "shortest"_a, "most"_a);

  nb::class_<PageJob>(m, "PageJob")
      .def("wait", &PageJob::wait, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("seconds", &PageJob::seconds)
      .def("take", &saved, "The bytes of each page saved, once: they are moved out.");
  m.def("transfer", &transfer, "pool"_a, "kv"_a, "saves"_a, "loads"_a);

  nb::class_<Slots>(m, "Slots").def(nb::new_([] { return std::make_shared<Slots>(); }));

  nb::class_<StepJob>(m, "StepJob")
      .def("wait", &StepJob::wait, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("over", &StepJob::over)
      .def_prop_ro("seconds", &StepJob::seconds)
      .def_prop_ro("times", &StepJob::times)
      .def("drawn", &drawn)
      .def("outputs", &outputs);

  using InstructionTuple =
      std::tuple<int, std::vector<int>, std::vector<int>, std::vector<int>, std::vector<int>, std::vector<float>, std::string>;
  nb::class_<Program>(m, "Program")
      .def(
          nb::new_([](const std::string& isa, const std::vector<InstructionTuple>& instructions,
             const std::vector<std::tuple<bool, int, int, int, int>>& buffers, std::vector<std::shared_ptr<Weight>> weights,
             const std::vector<Floats>& vectors, const std::vector<std::tuple<Floats, Floats, int, bool>>& ropes, int logits) {
            std::vector<Instruction> list;
            for (const auto& [op, in, out, w, whole, real, text] : instructions) list.push_back({Op(op), in, out, w, whole, real, text});
            std::vector<BufferShape> shapes;
            for (const auto& [sampled, integer, width, chosen, experts] : buffers) shapes.push_back({sampled, integer, width, chosen, experts});
            std::vector<std::vector<float>> v;
            for (const auto& x : vectors) v.push_back(copied(x));
            std::vector<RopeAngles> r;
            for (const auto& [cos, sin, dims, adjacent] : ropes) r.push_back({copied(cos), copied(sin), dims, adjacent});
            return std::make_shared<Program>(kernels_for(isa), std::move(list), std::move(shapes), std::move(weights), std::move(v), std::move(r),
                                             logits);
          }),
          "isa"_a, "instructions"_a, "buffers"_a, "weights"_a, "vectors"_a, "ropes"_a, "logits"_a);

  m.def(
      "submit",
      [](Pool& pool, std::shared_ptr<Program> program, std::shared_ptr<KVStore> kv, std::shared_ptr<Slots> slots, const Ints& ids,
         const Ints& positions, const Ints& sequences, const Ints& sampled, const Ints& sequence_slots, const Ints& guesses, const Ints& parents,
         const std::vector<Ints2>& tables,
         const std::map<std::string, Floats2>& inputs, const std::vector<DrawTuple>& draws, const std::vector<std::tuple<int, int, int, int>>& copies,
         const std::vector<std::tuple<int, Ints>>& starts, bool outputs, bool clocked) {
        Step step = make_step(ids, positions, sequences, sampled, sequence_slots, guesses, parents, tables, inputs);
        for (const auto& d : draws) step.draws.push_back(draw_row(d));
        for (const auto& [group, source, target, n] : copies) step.copies.push_back({group, source, target, n});
        for (const auto& [slot, prompt] : starts) step.starts.push_back({slot, copied(prompt)});
        step.outputs = outputs, step.clocked = clocked;
        program->check(step, *kv, slots != nullptr);
        auto job = std::make_shared<StepJob>(std::move(program), std::move(kv), std::move(slots), std::move(step), pool.threads());
        pool.submit(job);
        return job;
      },
      "pool"_a, "program"_a, "kv"_a, "slots"_a.none(), "ids"_a, "positions"_a, "sequences"_a, "sampled"_a, "sequence_slots"_a, "guesses"_a, "parents"_a, "tables"_a,
      "inputs"_a, "draws"_a, "copies"_a, "starts"_a, "outputs"_a, "clocked"_a);
}
